/** The memory of a {@link ClaimTable}, as it is handed to a thread. */
export interface ClaimTableMemory {
  readonly ids: SharedArrayBuffer
  readonly epochs: SharedArrayBuffer
  readonly untilMs: SharedArrayBuffer
}

/** The same in every thread of the process, unlike `performance.now()`, which begins with each. */
export const monotonicMs = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000

const FREE = 0n

/**
 * The claims that a process holds, in memory that two threads share: the main thread writes, the lease thread reads. A table and no messages, because a
 * queue of small steps takes and drops twenty thousand claims a second, and because a main thread that is blocked can still be read.
 *
 * A slot is published by its id, which is written last and cleared first. A reader that meets a slot as it changes may see an id with another claim's
 * epoch; it then asks for the lease of a claim that does not exist, which renews nothing.
 */
export class ClaimTable {
  readonly memory: ClaimTableMemory
  readonly #ids: BigInt64Array
  readonly #epochs: BigInt64Array
  readonly #untilMs: Float64Array
  readonly #free: number[] = []
  // Slot 0 holds no claim: its `untilMs` is one past the highest slot ever used, so that a reader need not look at all of them.

  constructor(from: number | ClaimTableMemory) {
    const size = typeof from === 'number' ? from + 1 : 0
    this.memory =
      typeof from === 'number'
        ? { ids: new SharedArrayBuffer(size * 8), epochs: new SharedArrayBuffer(size * 8), untilMs: new SharedArrayBuffer(size * 8) }
        : from
    this.#ids = new BigInt64Array(this.memory.ids)
    this.#epochs = new BigInt64Array(this.memory.epochs)
    this.#untilMs = new Float64Array(this.memory.untilMs)
    if (typeof from === 'number') this.#untilMs[0] = 1
  }

  /** Takes a slot; `untilMs` by {@link monotonicMs}. Throws when all are taken: the caller has claimed more than it said it would. */
  hold(id: string, epoch: string, untilMs: number): number {
    const high = this.#untilMs[0] ?? 1
    const slot = this.#free.pop() ?? high
    if (slot >= this.#ids.length) throw new Error(`more than ${this.#ids.length - 1} claims are held at once`)
    if (slot === high) this.#untilMs[0] = high + 1
    this.#epochs[slot] = BigInt(epoch)
    this.#untilMs[slot] = untilMs
    Atomics.store(this.#ids, slot, BigInt(id))
    return slot
  }

  limit(slot: number, untilMs: number): void {
    this.#untilMs[slot] = untilMs
  }

  drop(slot: number): void {
    Atomics.store(this.#ids, slot, FREE)
    this.#free.push(slot)
  }

  /** Claims that are to be renewed at `nowMs`, as the lease thread reads them. */
  held(nowMs: number): { ids: string[]; epochs: string[] } {
    const found = { ids: [] as string[], epochs: [] as string[] }
    const high = this.#untilMs[0] ?? 1
    for (let slot = 1; slot < high; slot += 1) {
      const id = Atomics.load(this.#ids, slot)
      const epoch = this.#epochs[slot] ?? FREE
      if (id === FREE || (this.#untilMs[slot] ?? 0) <= nowMs) continue
      found.ids.push(id.toString())
      found.epochs.push(epoch.toString())
    }
    return found
  }
}
