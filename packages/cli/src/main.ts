import { CommanderError } from 'commander'
import type { Answer } from './answer.ts'
import { isHelp } from './command.ts'
import { readCliEnv } from './env.ts'
import { type ExitCode, ExitCodes } from './exit-code.ts'
import { failureOf } from './failure.ts'
import { buildProgram } from './program.ts'
import { Session } from './session.ts'

export interface RunOptions {
  readonly session: Session
  readonly out: (text: string) => void
  readonly err: (text: string) => void
}

/** Runs `holdfast` with the arguments of this process and sets its exit code. */
export async function main(argv: readonly string[] = process.argv.slice(2)): Promise<void> {
  const out = (text: string): void => void process.stdout.write(text)
  const err = (text: string): void => void process.stderr.write(text)
  // Whoever reads only the head of it (`| head`) is not answered any more, and that is no fault.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? process.exitCode : ExitCodes.internal))
  process.exitCode = await run(argv, { session: new Session(readCliEnv(), process.cwd()), out, err })
}

/**
 * One command line, and what the process is to end with. With --json `out` gets one JSON document, also for a refusal (`{"error":{"code","message"}}`), and
 * `err` nothing; without, answers are text on `out` and refusals text on `err`.
 */
export async function run(argv: readonly string[], { session, out, err }: RunOptions): Promise<ExitCode> {
  const json = asksForJson(argv)
  let exitCode: ExitCode = ExitCodes.ok
  const answer = (given: Answer): void => {
    out(`${json ? JSON.stringify(given.document) : given.text}\n`)
    exitCode = given.exitCode ?? ExitCodes.ok
  }
  const say = (line: string): void => {
    if (!json) err(`${line}\n`)
  }
  let help = ''
  const program = buildProgram({ context: { session, say }, answer }, (text) => (help += text))
  try {
    await program.parseAsync(argv, { from: 'user' })
    return exitCode
  } catch (error) {
    if (error instanceof CommanderError && isHelp(error)) {
      out(json ? `${JSON.stringify({ help })}\n` : help)
      return ExitCodes.ok
    }
    const failure = failureOf(error)
    if (json) out(`${JSON.stringify({ error: { code: failure.code, message: failure.message } })}\n`)
    else err(`holdfast: ${failure.message}\n`)
    return failure.exitCode
  }
}

/** Before anything is parsed, so that a wrong command line is answered in the form that was asked for. */
function asksForJson(argv: readonly string[]): boolean {
  const end = argv.indexOf('--')
  return (end < 0 ? argv : argv.slice(0, end)).includes('--json')
}
