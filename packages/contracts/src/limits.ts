/** Bounds of what a caller may send; each is a CHECK in the database too, or guards one. */
export const Limits = Object.freeze({
  nameLength: 200,
  keyLength: 500,
  batchInstances: 10_000,
  bulkInstances: 1_000,
  priorityMin: -32_768,
  priorityMax: 32_767,
  listLimit: 500,
  waitMs: 30_000,
})
