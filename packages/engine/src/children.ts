import type { InstanceId, InstanceStatus, MachineRef, ResultOf } from '@holdfast/contracts'
import { type ChildRow, countChildren, type Executor, listChildren } from '@holdfast/queries'

/** A child as its parent's step sees it. */
export interface ChildView<Result = unknown> {
  readonly id: InstanceId
  readonly machine: string
  readonly version: number
  readonly status: InstanceStatus
  readonly correlationKey: string | null
  /** null until it is done, and where it ended otherwise. */
  readonly result: Result | null
  /** Why it failed or was cancelled. */
  readonly error: { readonly code: string; readonly message: string } | null
}

export interface ChildFilter {
  readonly status?: InstanceStatus
}

const PAGE = 1_000

/**
 * The children that an instance has spawned, in all its rounds, oldest first. Nothing is loaded before it is asked for, and then page by page: a
 * join of ten thousand costs its step what it looks at.
 */
export class Children<Result = unknown> implements AsyncIterable<ChildView<Result>> {
  readonly #db: Executor
  readonly #parentId: InstanceId
  readonly #machine: string | null

  constructor(db: Executor, parentId: InstanceId, machine: string | null = null) {
    this.#db = db
    this.#parentId = parentId
    this.#machine = machine
  }

  /** Only those of one machine, with its result typed. */
  of<Machine extends MachineRef>(machine: Machine): Children<ResultOf<Machine>> {
    return new Children(this.#db, this.#parentId, machine.name)
  }

  /** How many there are in each status, of all machines. */
  async counts(): Promise<Readonly<Partial<Record<InstanceStatus, number>>>> {
    const rows = await countChildren(this.#db, { parentId: this.#parentId })
    return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
  }

  /** At most `limit` (default 1,000) from behind the id `after`; fewer: these are the last. */
  async page({
    after,
    limit = PAGE,
    status,
  }: ChildFilter & { readonly after?: InstanceId; readonly limit?: number } = {}): Promise<ChildView<Result>[]> {
    const rows = await listChildren(this.#db, {
      parentId: this.#parentId,
      after: after ?? ('0' as InstanceId),
      limit,
      machine: this.#machine,
      status: status ?? null,
    })
    return rows.map((row) => viewOf<Result>(row))
  }

  /** One after the other, a page in memory at a time. */
  async *where(filter: ChildFilter): AsyncGenerator<ChildView<Result>, void, undefined> {
    for (let after: InstanceId | undefined; ; ) {
      const page = await this.page({ ...filter, ...(after === undefined ? {} : { after }) })
      yield* page
      const last = page.at(-1)
      if (last === undefined || page.length < PAGE) return
      after = last.id
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<ChildView<Result>, void, undefined> {
    return this.where({})
  }
}

const viewOf = <Result>(row: ChildRow): ChildView<Result> => ({
  id: row.id,
  machine: row.machine,
  version: row.version,
  status: row.status,
  correlationKey: row.correlation_key,
  result: row.result as Result | null,
  error: row.error as ChildView['error'],
})
