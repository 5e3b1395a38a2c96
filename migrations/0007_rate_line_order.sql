-- safe: one index gets more columns
-- Where a rate is 0, all that wait for it wait for the same endless time; which of them is the first in the line was left to chance, and with it
-- who could still have the tokens that are left. Writers wait while the index is made: one scan of the instances.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

DROP INDEX holdfast.instance_rate_line;
CREATE INDEX instance_rate_line ON holdfast.instance (project_id, rate_key, throttled_until, priority, eligible_at, id)
  WHERE status = 'throttled' AND throttled_until IS NOT NULL AND rate_key IS NOT NULL;
