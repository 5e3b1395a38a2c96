/** What is enqueued: jobs that do nothing, machines of three steps, and jobs of which the start is timed. */
export type Work = 'noop' | 'steps3' | 'ping'

/** What enqueues, in the measuring process. */
export interface Producer extends AsyncDisposable {
  /** As many as that, in the fastest way that the system's own library has. */
  insert(work: Work, count: number): Promise<void>
  /** One, as the handler of a request would. */
  insertOne(work: Work): Promise<void>
}

/** A handler says that it runs, in the worker's process. */
export type Called = (times?: number) => void

export type TrialName = 'drain' | 'steps' | 'idle'

/**
 * A system that is measured. All of them are treated alike: a database of its own on the same server, the worker in a Node process of its own that has
 * been warmed up by the same kind of work, jobs enqueued while nothing is taken, and the time from the first call of a handler until the database shows that
 * everything has ended.
 */
export interface System {
  readonly name: string
  /** As `--only` takes it. */
  readonly family: Family
  /** Of the system that its worker runs as, where only the database and the producer differ from that one. Default: `name`. */
  readonly workerName?: string
  /** For readers of a result: version, processes, settings, way of enqueueing. */
  readonly settings: string
  readonly trials: readonly TrialName[]
  /** Part of the jobs that it is given; slow systems get fewer, so that a run ends. */
  readonly share: number
  /** Processes that run all the time, such as a flusher. The process `worker` is started for each measurement. */
  readonly background: readonly string[]
  /** Makes an empty database its own. */
  prepare(url: string): Promise<void>
  producer(url: string): Promise<Producer>
  /** A query whose column `ok` is true when nothing is left to do. It is asked only after the last call of a handler, because asking costs. */
  readonly finished: string
  /**
   * Keeps the worker from taking jobs, or lets it. A system that has this is not stopped and started between its warm-up and the measurement, because its start
   * goes on in the background: ours loads a thread, which would take a core of what is measured.
   */
  hold?(url: string, held: boolean): Promise<void>
  /** In a process of its own: starts what `role` does and answers how to stop it. `called` is for handlers. */
  run(role: string, url: string, work: Work, called: Called): Promise<() => Promise<void>>
}

export const FAMILIES = ['raw', 'holdfast', 'graphile', 'pgboss', 'dbos', 'absurd'] as const
export type Family = (typeof FAMILIES)[number]

/** Calls of handlers that one of them takes. */
export const callsOf = (work: Work): number => (work === 'steps3' ? 3 : 1)

/** Counts from 0 to `count` in pieces of `size`. */
export function* pieces(count: number, size: number): Generator<readonly number[]> {
  for (let from = 0; from < count; from += size) yield Array.from({ length: Math.min(size, count - from) }, (_, index) => from + index)
}
