// The SQL of every statement as it is sent, written beside the query layer so that a review shows what runs.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { allStatements } from '@holdfast/queries'
import { isTask } from './run.ts'

const folder = join(import.meta.dirname, '../packages/queries/statements')

export interface WriteStatementsOptions {
  /** Only list what differs; write nothing. */
  readonly check: boolean
}

/**
 * Brings `packages/queries/statements/<family>/<name>.sql` in line with the query layer, and answers the files that were not: changed, missing, or
 * of a statement that is gone.
 */
export function writeStatements({ check }: WriteStatementsOptions): string[] {
  const wanted = new Map<string, string>()
  for (const [name, statement] of allStatements) {
    const [family, ...rest] = name.split('.')
    if (family === undefined || rest.length !== 1) throw new Error(`statement ${name} must be named family.name`)
    wanted.set(join(folder, family, `${rest[0]}.sql`), page(statement.compile(statement.sample as never).sql))
  }
  if (wanted.size === 0) throw new Error('the query layer has no statements')

  const present = new Map(
    readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.sql'))
      .map((file) => [join(folder, file), readFileSync(join(folder, file), 'utf8')]),
  )
  const drifted: string[] = []
  for (const [file, text] of wanted) {
    if (present.get(file) === text) continue
    drifted.push(relative(folder, file))
    if (check) continue
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, text)
  }
  for (const file of present.keys()) {
    if (wanted.has(file)) continue
    drifted.push(relative(folder, file))
    if (!check) rmSync(file)
  }
  return drifted.sort()
}

const page = (text: string): string =>
  `-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.\n${text.trimEnd()}\n`

if (isTask(import.meta.filename)) {
  const check = process.argv.includes('--check')
  const drifted = writeStatements({ check })
  for (const file of drifted) console.log(`${check ? 'differs' : 'written'}: packages/queries/statements/${file}`)
  process.exitCode = check && drifted.length > 0 ? 1 : 0
}
