import type { Machine } from './machine.ts'

/** The machines that one scheduler can run, by name and version. */
export class MachineRegistry {
  readonly #machines = new Map<string, Machine>()

  constructor(machines: Iterable<Machine>) {
    for (const given of machines) {
      const key = machineKey(given)
      const known = this.#machines.get(key)
      if (known !== undefined && known !== given)
        throw new Error(`two machines are named ${given.name} with version ${given.version}; give one of them another version or name`)
      this.#machines.set(key, given)
    }
  }

  get(name: string, version: number): Machine | undefined {
    return this.#machines.get(machineKey({ name, version }))
  }
  /** `name/version` of each, as the claim statement compares them. */
  keys(): string[] {
    return [...this.#machines.keys()]
  }
  values(): Machine[] {
    return [...this.#machines.values()]
  }
  get size(): number {
    return this.#machines.size
  }
}

const machineKey = ({ name, version }: { name: string; version: number }): string => `${name}/${version}`
