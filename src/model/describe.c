/* SPDX-License-Identifier: Apache-2.0 */
/* space-describe: prints the tables of the model as the Markdown pages that are kept in the tree. Not installed. */
#include "base/fdio.h"
#include "model/limits.h"
#include "model/problems.h"
#include "model/settings.h"
#include "model/transitions.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    _cleanup_buf_ struct buf out = {0};
    int r = -1;
    buf_init(&out, 1 << 20);
    if (argc == 2 && strcmp(argv[1], "limits") == 0)
        r = limits_print_markdown(&out);
    else if (argc == 2 && strcmp(argv[1], "errors") == 0)
        r = problems_print_markdown(&out);
    else if (argc == 2 && strcmp(argv[1], "configuration") == 0)
        r = settings_print_markdown(&out);
    else if (argc == 2 && strcmp(argv[1], "states") == 0)
        r = transitions_print_markdown(&out);
    else
        (void)fputs("usage: space-describe limits|errors|states|configuration\n", stderr);
    if (r == 0)
        r = fd_write_all(STDOUT_FILENO, out.data, out.len, NULL);
    return r == 0 ? 0 : 1;
}
