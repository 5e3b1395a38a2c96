-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.bound_transaction */ 
SELECT set_config('statement_timeout', $1::text, true),
  set_config('idle_in_transaction_session_timeout', $2::text, true)
