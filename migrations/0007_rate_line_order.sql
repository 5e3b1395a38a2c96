-- safe: one index gets more columns
-- Where a rate is 0, all that wait for it wait for the same endless time; which of them is the first in the line was left to chance, and with it
-- who could still have the tokens that are left. Everybody waits while the index is made, which is one scan of the instances,
-- because a migration is one transaction and a claim must not look at the line in the moment without its index.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- squawk-ignore require-concurrent-index-deletion
DROP INDEX holdfast.instance_rate_line;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX instance_rate_line ON holdfast.instance (project_id, rate_key, throttled_until, priority, eligible_at, id)
  WHERE status = 'throttled' AND throttled_until IS NOT NULL AND rate_key IS NOT NULL;
