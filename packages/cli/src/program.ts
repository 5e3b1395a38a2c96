import { readFileSync } from 'node:fs'
import { Command } from 'commander'
import { explained, type Host, isHelp, unknownCommand } from './command.ts'
import { addEnqueue } from './commands/enqueue.ts'
import { addGet } from './commands/get.ts'
import { addLimits } from './commands/limits.ts'
import { addList } from './commands/list.ts'
import { addCancel, addRetry } from './commands/move.ts'
import { addDoctor } from './commands/doctor.ts'
import { addMigrate } from './commands/migrate.ts'
import { addProject } from './commands/project.ts'
import { addQueues } from './commands/queues.ts'
import { addSchedules } from './commands/schedules.ts'
import { addSignal } from './commands/signal.ts'
import { addToken } from './commands/token.ts'
import { UsageError } from './exit-code.ts'

/** Shown below the help of `holdfast` itself. */
const CLOSING = `
Where it connects to, in this order: the options, the environment (HOLDFAST_URL, HOLDFAST_TOKEN, HOLDFAST_MANAGE_URL, HOLDFAST_OPERATOR_TOKEN,
HOLDFAST_DATABASE_URL), the system that npm start runs on this machine (.holdfast/dev.json).

Exit codes: 0 done; 1 refused, ended badly, or found broken; 2 the command line is wrong; 3 no answer; 70 a fault of this command.`

/** The whole command. `write` gets its help. */
export function buildProgram(host: Host, write: (text: string) => void): Command {
  const program = new Command('holdfast')
    .description('Durable work on one PostgreSQL: enqueue and watch it, steer it, and look after the database that holds it.')
    .version(version(), '-V, --version', 'print the version')
    .option('--json', 'print one JSON document and nothing else')
    .option('--url <url>', 'address of the API')
    .option('--token <token>', "a project's token; better in HOLDFAST_TOKEN, where other users of the machine do not see it")
    .option('--manage-url <url>', 'address of the management API')
    .option('--operator-token <token>', 'an operator token; better in HOLDFAST_OPERATOR_TOKEN')
    .option('--database-url <url>', 'the database, for migrate and doctor')
    .usage('<command> [options]')
    .helpCommand(false)
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({ writeOut: write, writeErr: () => {}, outputError: () => {} })
    .argument('[command]')
    .addHelpText('after', CLOSING)
  program.exitOverride((error) => {
    throw isHelp(error) ? error : new UsageError(`${explained(error)}\n  all of it: holdfast --help`)
  })
  program.action((word: string | undefined) => {
    throw new UsageError(
      word === undefined
        ? `say what to do: ${program.commands.map((command) => command.name()).join(', ')}\n  all of it: holdfast --help`
        : unknownCommand(program, word),
    )
  })
  for (const add of [addEnqueue, addSignal, addGet, addList, addCancel, addRetry, addQueues, addLimits, addSchedules]) add(program, host)
  for (const add of [addProject, addToken, addMigrate, addDoctor]) add(program, host)
  return program
}

const version = (): string => (JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { version: string }).version
