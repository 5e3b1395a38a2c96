/** The database role of each app, made with its allow-list of grants by the migrations. */
export const DatabaseRoles = Object.freeze({
  api: 'holdfast_api',
  scheduler: 'holdfast_scheduler',
  flusher: 'holdfast_flusher',
  reaper: 'holdfast_reaper',
  'formation-worker': 'holdfast_formation_worker',
  sealer: 'holdfast_sealer',
} as const)
export type Role = keyof typeof DatabaseRoles
