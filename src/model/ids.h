/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of object ids and their prefixes; the digits behind the prefix are base/random.h's. */
#pragma once
#include "base/random.h"
#include <stdbool.h>

enum id_kind {
    ID_SANDBOX,   /* sbx_ */
    ID_OPERATION, /* op_  */
    ID_SESSION,   /* ses_ */
    ID_PROCESS,   /* prc_: stable name of a command, not its pid */
    ID_TEMPLATE,  /* tpl_ */
    ID_TENANT,    /* ten_ */
    ID_TOKEN,     /* tok_ */
    ID_SNAPSHOT,  /* snp_ */
    ID_POOL,      /* pol_ */
    ID_KIND_COUNT_
};

const char *id_kind_prefix(enum id_kind kind);
const char *id_kind_noun(enum id_kind kind); /* "sandbox", for messages */
void id_new(char dst[ID_SIZE], enum id_kind kind);
bool id_is(const char *text, enum id_kind kind);

/* Bearer tokens: "<prefix>_" + 43 characters of base64url over 32 random bytes. The kind is visible so that a token at
 * the wrong door is told so; nothing else can be read off it. */
enum token_kind { TOKEN_NONE, TOKEN_MANAGEMENT /* spm_ */, TOKEN_ATTACHMENT /* spa_ */, TOKEN_INTERNAL /* spi_ */ };
#define TOKEN_SIZE 48 /* "spm_" + 43 + NUL */
/* The kind by its prefix and form; TOKEN_NONE for anything else. */
enum token_kind token_kind_of(const char *token);
void token_new(char dst[TOKEN_SIZE], enum token_kind kind);
