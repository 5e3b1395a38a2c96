import { stat } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Machine } from '@holdfast/engine'

/**
 * Imports the modules that HOLDFAST_MACHINES names and takes every machine and job that they export. A path is taken from the working directory;
 * a folder stands for its index file; anything else is a package name.
 * Throws an Error that names the module when it cannot be imported or exports none.
 */
export async function loadMachines(list: string): Promise<Machine[]> {
  const machines = new Set<Machine>()
  for (const name of list.split(',').map((piece) => piece.trim())) {
    if (name === '') continue
    let exported: Record<string, unknown>
    try {
      exported = (await import(await locate(name))) as Record<string, unknown>
    } catch (error) {
      throw new Error(
        `HOLDFAST_MACHINES names ${name}, which could not be loaded: ${error instanceof Error ? error.message : String(error)}`,
        { cause: error },
      )
    }
    const found = Object.values(exported).filter(isMachine)
    if (found.length === 0)
      throw new Error(`HOLDFAST_MACHINES names ${name}, which exports no machine and no job; export what machine() or job() answers`)
    for (const machine of found) machines.add(machine)
  }
  return [...machines]
}

async function locate(name: string): Promise<string> {
  const path = resolve(name)
  const found = await stat(path).catch(() => undefined)
  if (found === undefined) return name
  if (!found.isDirectory()) return pathToFileURL(path).href
  for (const index of ['index.ts', 'index.js', 'index.mjs']) {
    const file = join(path, index)
    if (
      await stat(file).then(
        () => true,
        () => false,
      )
    )
      return pathToFileURL(file).href
  }
  throw new Error(`the folder ${path} has no index.ts, index.js or index.mjs`)
}

// By its shape and not by a class: the module may come with a copy of the engine of its own.
const isMachine = (value: unknown): value is Machine =>
  typeof value === 'object' && value !== null && 'name' in value && 'version' in value && 'steps' in value && value.steps instanceof Map
