// `npm run generate`: everything that is written from the migrations and the query layer, from one fresh PostgreSQL. `--check` writes nothing
// and ends with 1 where something differs.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { migrate } from '@holdfast/schema'
import { startPostgres } from '@holdfast/testbed/postgres'
import { dumpSchema } from './dump-schema.ts'
import { isTask, root } from './run.ts'

interface Generated {
  /** Relative to the repository. */
  readonly file: string
  readonly text: string
}

/** What the migrated database at `url` gives, beside where it is kept. */
export async function generateFrom(url: string): Promise<readonly Generated[]> {
  const schema = await dumpSchema(url) // first: it refuses what neither can show
  const types = await kyselyTypes(url)
  return [
    { file: 'packages/schema/src/database.ts', text: types },
    { file: 'migrations/schema.sql', text: schema },
  ]
}

/** What is kept now, '' where there is no such file. */
export function kept(file: string): string {
  try {
    return readFileSync(join(root, file), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
    throw error
  }
}

async function kyselyTypes(url: string): Promise<string> {
  // The package that owns the generator is the one that owns its output.
  const codegen = createRequire(join(root, 'packages/schema/package.json')).resolve('kysely-codegen')
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-types-'))
  try {
    const out = join(folder, 'database.ts')
    const flags = ['--dialect', 'postgres', '--url', url, '--default-schema', 'holdfast', '--out-file', out]
    const patterns = ['--include-pattern', 'holdfast.*', '--exclude-pattern', 'holdfast.transition_*']
    const child = spawn(process.execPath, [join(codegen, '../cli/bin.js'), ...flags, ...patterns], {
      cwd: folder,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let said = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text
    })
    const [code] = (await once(child, 'close')) as [number | null]
    if (code !== 0) throw new Error(`kysely-codegen failed:\n${said}`)
    return readFileSync(out, 'utf8')
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** The first lines that differ, as a diff shows them. */
function difference(before: string, after: string): string {
  const [old, now] = [before.split('\n'), after.split('\n')]
  const first = now.findIndex((line, index) => line !== old[index])
  const at = first === -1 ? now.length : first
  const show = (sign: string, lines: readonly string[]): string[] => lines.slice(at, at + 5).map((line) => `  ${sign} ${line}`)
  return [`  @ line ${at + 1}`, ...show('-', old), ...show('+', now)].join('\n')
}

async function main(check: boolean): Promise<void> {
  const postgres = await startPostgres()
  let generated: readonly Generated[]
  try {
    await migrate({ connectionString: postgres.url('postgres'), folder: join(root, 'migrations') })
    generated = await generateFrom(postgres.url('postgres'))
  } finally {
    await postgres.stop()
  }
  const drifted = generated.filter(({ file, text }) => kept(file) !== text)
  for (const { file, text } of drifted) {
    console.log(`${check ? 'differs' : 'written'}: ${file}`)
    if (check) console.log(difference(kept(file), text))
    else writeFileSync(join(root, file), text)
  }
  const { writeStatements } = await import('./write-statements.ts') // here, so that the schema's test does not load the query layer
  const statements = writeStatements({ check })
  for (const file of statements) console.log(`${check ? 'differs' : 'written'}: packages/queries/statements/${file}`)
  if (drifted.length + statements.length === 0) console.log('generated files are up to date')
  else if (check) {
    console.log('run `npm run generate` and commit what it writes')
    process.exitCode = 1
  }
}

if (isTask(import.meta.filename)) await main(process.argv.includes('--check'))
