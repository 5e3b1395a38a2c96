-- safe: new words only, which nothing says yet
-- squawk-ignore-file require-enum-value-ordering
-- Order means nothing in this enum. A file of its own: PostgreSQL lets a new enum value be used only after the transaction that added it.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TYPE holdfast.outcome_kind ADD VALUE IF NOT EXISTS 'spawn';
ALTER TYPE holdfast.outcome_kind ADD VALUE IF NOT EXISTS 'continue_as';
