/**
 * Which statements each index exists for. The plan test explains every statement named here on a seeded million rows and fails where another index
 * is used; docs/indexes.md is made of it.
 */
export const servedBy: Readonly<Record<string, readonly string[]>> = {
  instance_pkey: [
    'engine.stage_outcomes',
    'engine.apply_outcomes',
    'engine.apply_riders',
    'engine.quarantine_outcome',
    'engine.heartbeat',
    'engine.release_claims',
    'engine.deliver_signal_by_id',
    'engine.promote_due',
    'engine.fire_await_deadlines',
    'engine.reap_expired',
    'engine.delete_finished',
    'engine.get_statuses',
    'engine.get_instances',
  ],
  instance_pick: ['engine.claim'],
  instance_concurrency_active: ['engine.claim'],
  instance_due: ['engine.promote_due'],
  instance_lease: ['engine.reap_expired'],
  instance_await_deadline: ['engine.fire_await_deadlines'],
  instance_correlation: ['engine.deliver_signal_by_key', 'engine.find_occupants'],
  instance_finished: ['engine.delete_finished'],
  instance_project: ['engine.list_instances'],
  instance_parent: [],
  signal_pkey: ['engine.apply_riders'],
  signal_target: ['engine.load_inbox', 'engine.apply_riders', 'engine.quarantine_outcome', 'engine.reap_expired'],
  signal_dedup: [],
  signal_receipt_pkey: [],
  outcome_pkey: ['engine.reap_expired', 'engine.release_claims'],
  outcome_seq: ['engine.apply_outcomes', 'engine.has_outcomes', 'engine.peek_outcome', 'engine.quarantine_outcome'],
  outcome_quarantine_pkey: [],
  outcome_quarantine_instance: [],
  transition_instance: ['engine.get_history'],
  machine_pkey: ['engine.enqueue', 'engine.reap_expired'],
  queue_pkey: ['engine.claim'],
  project_pkey: ['tenants.authenticate'],
  project_name: ['tenants.find_project'],
  api_token_pkey: ['tenants.revoke_token'],
  api_token_sha256: ['tenants.authenticate'],
  process_pkey: ['process.beat', 'process.leave'],
  schema_migration_pkey: [],
}

/** What an index without a statement above is for. */
export const otherPurpose: Readonly<Record<string, string>> = {
  instance_parent: 'children of a parent, and the foreign key when a parent is deleted',
  signal_dedup: 'no second signal of one dedup key in an inbox',
  signal_receipt_pkey: 'arbiter of engine.deliver_signal_*: a redelivery is a no-op; the foreign key when an instance is deleted',
  outcome_quarantine_pkey: 'identity',
  outcome_quarantine_instance: 'what is in quarantine of one instance, for people',
  schema_migration_pkey: 'the migrator and readiness',
}
