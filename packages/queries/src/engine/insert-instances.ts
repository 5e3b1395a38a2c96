import { HoldfastError, type InstanceId, type ProjectId } from '@holdfast/contracts'
import type { Executor } from '../statement.ts'
import { listDeclared } from './declare-machines.ts'
import { enqueue, findOccupants, type NewInstance } from './enqueue.ts'

export interface InsertedInstances {
  /** In the order given: the new instance, or the one that occupies its key. */
  readonly ids: readonly InstanceId[]
  readonly created: readonly boolean[]
  /** Queues that have something to run now. */
  readonly queues: readonly string[]
  /** Milliseconds until the first delayed one is due. */
  readonly dueInMs: number | null
}

/** Most names in a message. */
const SHOWN = 20
/** An occupant may end between our insert and our look at it; each try meets another one at most. */
const ATTEMPTS = 5

/**
 * Inserts instances and finds out who occupies the keys of those that were not inserted: one statement, and a second one where a key was occupied.
 * Throws HoldfastError `invalid_limit` (nothing inserted) for a rate limit that is not there or too small, `unknown_machine` (nothing inserted) if `declaredOnly` and a machine is not declared, `instance_conflict` if a key kept
 * changing hands.
 */
export async function insertInstances(
  db: Executor,
  { projectId, instances, declaredOnly }: { projectId: ProjectId; instances: readonly NewInstance[]; declaredOnly: boolean },
): Promise<InsertedInstances> {
  const ids: InstanceId[] = []
  const created = instances.map(() => false)
  const queues = new Set<string>()
  let dueInMs: number | null = null
  let open = instances.map((_instance, index) => index)
  for (let attempt = 0; open.length > 0; attempt += 1) {
    if (attempt === ATTEMPTS)
      throw new HoldfastError('instance_conflict', 'a correlation key kept changing hands while it was being inserted; try again')
    const [row] = await enqueue(db, { projectId, declaredOnly, instances: open.map((index) => instances[index] as NewInstance) })
    if (row?.unknown != null) throw await unknownMachine(db, row.unknown)
    if (row?.unlimited != null) throw unknownLimit(row.unlimited)
    for (const queue of row?.queues ?? []) queues.add(queue)
    if (row?.due_in_ms != null) dueInMs = Math.min(dueInMs ?? Number.POSITIVE_INFINITY, row.due_in_ms)
    const inserted = new Set(row?.inserted ?? [])
    const refused: number[] = []
    for (const [place, index] of open.entries()) {
      const id = row?.ids?.[place]
      if (id === undefined) throw new Error('enqueue answered fewer ids than it was given rows')
      if (inserted.has(id)) {
        ids[index] = id
        created[index] = true
      } else refused.push(index)
    }
    open = refused.length === 0 ? refused : await resolveOccupants(db, projectId, instances, refused, ids)
  }
  return { ids, created, queues: [...queues], dueInMs }
}

/** Fills in the occupants that there are; answers the rest, whose keys have become free. */
async function resolveOccupants(
  db: Executor,
  projectId: ProjectId,
  instances: readonly NewInstance[],
  refused: readonly number[],
  ids: InstanceId[],
): Promise<number[]> {
  const keyOf = (index: number): string => instances[index]?.correlationKey ?? ''
  const occupants = new Map(
    (await findOccupants(db, { projectId, correlationKeys: [...new Set(refused.map(keyOf))] })).map((row) => [row.correlation_key, row.id]),
  )
  return refused.filter((index) => {
    const occupant = occupants.get(keyOf(index))
    if (occupant !== undefined) ids[index] = occupant
    return occupant === undefined
  })
}

const unknownLimit = (complaints: readonly string[]): HoldfastError =>
  new HoldfastError(
    'invalid_limit',
    `the project has no such rate limit, or its burst is smaller than the weight: ${complaints.join(', ')}; nothing was inserted. Declare the limit (PUT /v1/limits/rate/NAME), or ask for less`,
  )

/** With the names that there are, so that a typo is seen; some of them where they are many. */
async function unknownMachine(db: Executor, names: readonly string[]): Promise<HoldfastError> {
  const declared = await listDeclared(db, { asked: names, limit: SHOWN + 1 })
  const shown = declared.slice(0, SHOWN).map(({ name, version }) => `${name}/${version}`)
  const asked = names.length > SHOWN ? `${names.slice(0, SHOWN).join(', ')} and ${names.length - SHOWN} more` : names.join(', ')
  return new HoldfastError(
    'unknown_machine',
    `no scheduler has declared ${names.length === 1 ? 'the machine' : 'the machines'} ${asked} (in that version); nothing was inserted. Declared are${declared.length > SHOWN ? ', among others' : ''}: ${shown.join(', ')}. Deploy a scheduler that exports it, or mend the name`,
  )
}
