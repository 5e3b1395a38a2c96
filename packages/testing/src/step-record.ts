import type { MachineRef, OutcomeKind } from '@holdfast/contracts'
import type { Machine } from '@holdfast/engine'

/** A step of an instance. */
export interface Place {
  readonly id: string
  readonly machine: string
  readonly step: string
}

export type OutcomeCounts = Partial<Record<OutcomeKind, number>>

/** The part of an outcome that is looked at. What a step answers is checked by the engine, not here. */
type Answered = { readonly kind?: OutcomeKind; readonly step?: string } | undefined

/** A process whose steps are watched: with the record of the drain that it works for, while it lives. */
export interface Watched {
  readonly record: StepRecord | undefined
}

/**
 * What the steps of a drain have done, seen by wrapping the functions of its machines: how many ran and for whom, what they answered, and how far the answers
 * have come, which is what a crash between two points is aimed by.
 */
export class StepRecord {
  steps = 0
  readonly outcomes: OutcomeCounts = {}
  readonly #runs = new Map<string, { place: Place; count: number }>()
  /** Where each instance that was seen is, or will be when its outcome has been applied. */
  readonly #places = new Map<string, Place>()
  /** Has ended here; its outcome is on its way to the database. */
  readonly #ended = new Map<string, Place>()
  /** Its outcome is staged. */
  readonly #staged = new Map<string, Place>()
  /** The kind that the last run of an instance answered: `onError` may take it back. */
  readonly #answers = new Map<string, OutcomeKind | undefined>()

  /** The same machine, watched for as long as its process lives: what steps that a crash has left behind still do is nobody's. */
  static watch(machine: Machine, process: Watched): Machine {
    const steps = new Map(
      [...machine.steps].map(([name, step]) => [
        name,
        {
          ...step,
          run: (ctx: Parameters<typeof step.run>[0]) => {
            const place: Place = { id: ctx.id, machine: machine.name, step: name }
            process.record?.began(place)
            try {
              const answer = step.run(ctx)
              // A step that is not asynchronous stays one: the engine takes a shorter way for it.
              if (answer instanceof Promise) return awaited(place, answer, process)
              process.record?.answered(place, answer)
              return answer
            } catch (error) {
              process.record?.threw(place)
              throw error
            }
          },
        },
      ]),
    )
    const onError: Machine['onError'] = async (error, ctx) => {
      try {
        const decided = await machine.onError?.(error, ctx)
        process.record?.decided(ctx.id, (decided as Answered)?.kind ?? (ctx.policyDelayMs === undefined ? 'fail' : 'retry'))
        return decided
      } catch (second) {
        process.record?.decided(ctx.id, 'fail')
        throw second
      }
    }
    return { ...machine, steps, onError }
  }

  claimed(place: Place): void {
    this.#places.set(place.id, place)
  }
  /** Where these instances are. */
  placesOf(ids: readonly string[]): Place[] {
    return ids.flatMap((id) => this.#places.get(id) ?? [])
  }
  ended(): Place[] {
    return [...this.#ended.values()]
  }
  staged(): Place[] {
    return [...this.#staged.values()]
  }
  /** The outcomes of these are in the database. */
  nowStaged(places: readonly Place[]): void {
    for (const place of places) {
      this.#ended.delete(place.id)
      this.#staged.set(place.id, place)
    }
  }
  nowFlushed(): void {
    this.#staged.clear()
  }
  /** The worker is gone, and with it whatever it had not written. */
  lost(): void {
    this.#ended.clear()
  }

  /** Instances by how often their steps ran, most first. */
  busiest(limit: number): { place: Place; count: number }[] {
    return [...this.#runs.values()].sort((a, b) => b.count - a.count).slice(0, limit)
  }

  began(place: Place): void {
    this.steps += 1
    this.#answers.delete(place.id)
    this.#places.set(place.id, place)
    const runs = this.#runs.get(place.id)
    this.#runs.set(place.id, { place, count: (runs?.count ?? 0) + 1 })
  }
  answered(place: Place, answer: unknown): void {
    this.#ended.set(place.id, place)
    const { kind, step } = (answer as Answered) ?? {}
    if (kind !== undefined) {
      this.#answers.set(place.id, kind)
      this.#count(kind, 1)
    }
    if (step !== undefined) this.#places.set(place.id, { ...place, step })
  }
  threw(place: Place): void {
    this.#ended.set(place.id, place)
  }
  /** What became of an error. It may be that of storing what was answered, which then counts no more. */
  decided(id: string, kind: OutcomeKind): void {
    const before = this.#answers.get(id)
    if (before !== undefined) this.#count(before, -1)
    this.#answers.delete(id)
    this.#count(kind, 1)
  }

  #count(kind: OutcomeKind, by: number): void {
    const count = (this.outcomes[kind] ?? 0) + by
    if (count === 0) delete this.outcomes[kind]
    else this.outcomes[kind] = count
  }
}

async function awaited<Answer>(place: Place, running: Promise<Answer>, process: Watched): Promise<Answer> {
  try {
    const answer = await running
    process.record?.answered(place, answer)
    return answer
  } catch (error) {
    process.record?.threw(place)
    throw error
  }
}

export const machineName = (machine: MachineRef | string): string => (typeof machine === 'string' ? machine : machine.name)
