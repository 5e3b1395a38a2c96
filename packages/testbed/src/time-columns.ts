// What time travel moves. A test compares these two lists with every time in the schema, so that a new column is decided on and not forgotten.

/** Moved back by a jump, in every row: the past and the future of what a test has made, so that all of it grows older together. */
export const movedColumns: Readonly<Record<string, readonly string[]>> = Object.freeze({
  instance: [
    'eligible_at',
    'await_deadline',
    'throttled_until',
    // Of claims whose worker has crashed: nobody else holds one between two passes of a drain.
    'lease_expires_at',
    'cancel_requested_at',
    'inserted_at',
    'updated_at',
  ],
  signal: ['inserted_at'],
  signal_receipt: ['received_at'],
  outcome: ['staged_at'],
  outcome_quarantine: ['quarantined_at'],
  transition: ['claimed_at', 'started_at', 'finished_at', 'flushed_at'],
  rate_bucket: ['refilled_at'],
  gate_slot: ['changed_at'],
  cascade: ['requested_at'],
  // Compared with the times of those that wait for the limit.
  limit_policy: ['created_at', 'updated_at'],
  schedule: ['due_at', 'last_error_at'],
  schedule_run: ['fired_at'],
})

/** Left where they are, each with the reason. */
export const fixedColumns: Readonly<Record<string, string>> = Object.freeze({
  'schema_migration.applied_at': 'of the database, not of what a test has made in it',
  'project.created_at': 'of the deployment: nothing depends on its age',
  'project_role.created_at': 'of the deployment: nothing depends on its age',
  'project.suspended_at': 'a switch that was thrown: nothing depends on how long ago',
  'api_token.created_at': 'of the deployment: nothing depends on its age',
  'api_token.revoked_at': 'a switch that was thrown: nothing depends on how long ago',
  'machine.declared_at': 'of the deployment: nothing depends on its age',
  'machine.seen_at': 'of the deployment: the test engine has its machines all the time',
  'queue.paused_at': 'a switch that was thrown: nothing depends on how long ago',
  'queue.updated_at': 'of the deployment: nothing depends on its age',
  'process.started_at': 'of real processes, which live by the real clock; a test engine registers none',
  'process.heartbeat_at': 'of real processes, which live by the real clock; a test engine registers none',
  'schedule.next_at': 'an instant of the calendar: the drain sets its calendar forward instead',
  'schedule.last_at': 'an instant of the calendar: the drain sets its calendar forward instead',
  'schedule.skipped_at': 'an instant of the calendar: the drain sets its calendar forward instead',
  'schedule_run.tick_at': 'an instant of the calendar: the drain sets its calendar forward instead',
  'schedule.paused_at': 'a switch that was thrown: nothing depends on how long ago',
  'schedule.created_at': 'of the deployment: nothing depends on its age',
  'schedule.updated_at': 'of the deployment: nothing depends on its age',
})
