/** The database role of each app, made with its allow-list of grants by the migrations; `direct-scheduler` is a scheduler that applies its outcomes itself. */
export const DatabaseRoles = Object.freeze({
  api: 'holdfast_api',
  scheduler: 'holdfast_scheduler',
  'direct-scheduler': 'holdfast_direct_scheduler',
  flusher: 'holdfast_flusher',
  reaper: 'holdfast_reaper',
  'formation-worker': 'holdfast_formation_worker',
  sealer: 'holdfast_sealer',
} as const)
export type Role = keyof typeof DatabaseRoles

/** The processes of a deployment. */
export const Apps = Object.freeze([
  'api',
  'scheduler',
  'flusher',
  'reaper',
  'formation-worker',
  'sealer',
] as const satisfies readonly Role[])
