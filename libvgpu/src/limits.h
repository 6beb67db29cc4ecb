/* The limits page as this process knows it. */
#ifndef EGPU_LIMITS_H
#define EGPU_LIMITS_H

#include "egpu_abi.h"

struct egpu_limits {
    uint64_t generation; /* 0: no valid page was ever seen */
    struct egpu_limits_copy page;
};

/* The limits in force, brought up to date if the page has changed; NULL and a reason when none was ever valid. */
const struct egpu_limits_copy *egpu_limits_now(enum egpu_reason *reason);

/* In a child after fork: nobody holds the lock here. */
void egpu_limits_forked(void);

/* Why a copy is not valid, NULL when it is. */
const char *egpu_limits_defect(const struct egpu_limits_copy *copy);

#endif
