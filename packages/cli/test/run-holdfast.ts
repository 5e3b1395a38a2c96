import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const BINARY = join(import.meta.dirname, '../bin/holdfast.mjs')

export interface Ended {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly stdin?: string
  readonly cwd?: string
}

/** The real binary as a process of its own, with nothing in its environment but what is given and no local system to be found. */
export async function holdfast(args: readonly string[], { env = {}, stdin = '', cwd }: RunOptions = {}): Promise<Ended> {
  const nowhere = mkdtempSync(join(tmpdir(), 'holdfast-cli-'))
  try {
    const child = spawn(process.execPath, ['--conditions=@holdfast/source', BINARY, ...args], {
      cwd: cwd ?? nowhere,
      env: { PATH: process.env['PATH'], HOLDFAST_HOME: nowhere, ...env },
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    let stdout = ''
    let stderr = ''
    child.stdout.on('data', (data: Buffer) => (stdout += data.toString()))
    child.stderr.on('data', (data: Buffer) => (stderr += data.toString()))
    child.stdin.on('error', () => undefined) // it may end without having read
    child.stdin.end(stdin)
    const code = await new Promise<number | null>((done, reject) => {
      child.once('error', reject)
      child.once('close', done)
    })
    return { code, stdout, stderr }
  } finally {
    rmSync(nowhere, { recursive: true, force: true })
  }
}

/** With --json, and what it printed as the one document that it must be. */
export async function holdfastJson<Document = unknown>(
  args: readonly string[],
  options: RunOptions = {},
): Promise<Ended & { readonly document: Document }> {
  const ended = await holdfast([...args, '--json'], options)
  if (ended.stderr !== '') throw new Error(`with --json nothing is said beside the document, but: ${ended.stderr}`)
  return { ...ended, document: JSON.parse(ended.stdout) as Document }
}
