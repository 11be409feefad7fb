/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: over every file of the given folders, and over cheap mutations of each (cut at
 * every length, every byte flipped, one doubled), so that a plain test run already walks the edges. Input is copied into memory
 * of exactly its size, which makes reads past the end visible to ASan. The mutations are the same in every run.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "fuzz.h"
#include <fcntl.h>
#include <string.h>

#define INPUT_MAX (1u << 20)
#define MUTATED_MAX 4096u /* larger inputs are only replayed */

static unsigned long runs;

static void run(const char *data, size_t len) {
    _cleanup_free_ uint8_t *copy = malloc(len ? len : 1);
    if (!copy)
        abort();
    if (len)
        memcpy(copy, data, len);
    (void)LLVMFuzzerTestOneInput(copy, len);
    runs++;
}

static void run_mutations(char *data, size_t len) {
    static const unsigned char flips[] = {0x01, 0x20, 0x80, 0xff};
    _cleanup_free_ char *twice = malloc(2 * len + 1);
    if (!twice)
        abort();
    for (size_t i = 0; i < len; i++)
        run(data, i);
    for (size_t i = 0; i < len; i++)
        for (size_t f = 0; f < ARRAY_SIZE(flips); f++) {
            data[i] = (char)(data[i] ^ flips[f]);
            run(data, len);
            data[i] = (char)(data[i] ^ flips[f]);
        }
    memcpy(twice, data, len);
    memcpy(twice + len, data, len);
    run(twice, 2 * len);
}

/* Returns how many files the folder holds; a missing folder holds none. */
static unsigned replay_folder(const char *path) {
    _cleanup_closedir_ DIR *dir = opendir(path);
    struct dirent *entry;
    unsigned files = 0;

    while (dir && (entry = readdir(dir))) {
        _cleanup_free_ char *data = NULL;
        struct sp_error err = {0};
        size_t len;
        if (entry->d_name[0] == '.')
            continue;
        if (file_read(dirfd(dir), entry->d_name, INPUT_MAX, &data, &len, &err) < 0) {
            fprintf(stderr, "%s/%s: %s\n", path, entry->d_name, err.text);
            exit(1);
        }
        files++;
        run(data, len);
        if (len <= MUTATED_MAX)
            run_mutations(data, len);
    }
    return files;
}

int main(int argc, char **argv) {
    unsigned files = 0;
    for (int i = 1; i < argc; i++)
        files += replay_folder(argv[i]);
    run("", 0);
    printf("%u files, %lu runs\n", files, runs);
    if (files == 0) {
        fprintf(stderr, "the corpus is empty: a target needs examples\n");
        return 1;
    }
    return 0;
}
