import { type Command, type CommanderError, Option } from 'commander'
import type { Answer } from './answer.ts'
import { UsageError } from './exit-code.ts'
import type { GlobalOptions, Session } from './session.ts'

/** What a command's action is given beside its arguments. */
export interface Context {
  readonly session: Session
  /** Lines for people while a command goes on; nothing under --json. */
  readonly say: (line: string) => void
}

export interface CommandDefinition<Options> {
  /** `cancel [ids...]`: the name and its arguments. */
  readonly name: string
  readonly summary: string
  /** Shown under the summary in the help of this command. */
  readonly more?: string
  /** Command lines without `holdfast `; the first stands in messages about a wrong line. */
  readonly examples: readonly [string, ...string[]]
  readonly configure?: (command: Command) => void
  readonly run: (context: Context, options: Options & GlobalOptions, args: readonly Argument[]) => Promise<Answer>
}
/** As the argument's parser made it: a text, several, or nothing for an optional one. */
export type Argument = string | readonly string[] | undefined

/** Receives each answer; set by whoever runs the program. */
export interface Host {
  readonly context: Context
  readonly answer: (answer: Answer) => void
}

/** Adds a command below `parent`. What is wrong with its command line becomes a {@link UsageError} that says what is accepted. */
export function addCommand<Options>(parent: Command, host: Host, definition: CommandDefinition<Options>): Command {
  const command = parent.command(definition.name)
  describe(command, definition)
  definition.configure?.(command)
  onAction(command, host, definition)
  return command
}

/** A command with commands below it; by itself it does what `run` does. */
export function addGroup<Options>(parent: Command, host: Host, definition: CommandDefinition<Options>): Command {
  const group = addCommand(parent, host, definition)
  group.usage('[command] [options]')
  // Otherwise a mistyped command below it would be an argument too many of the group itself.
  group.argument('[command]', 'see below; without one: list')
  group.action(async (word: string | undefined) => {
    if (word !== undefined) throw new UsageError(unknownCommand(group, word))
    host.answer(await definition.run(host.context, group.optsWithGlobals<Options & GlobalOptions>(), []))
  })
  return group
}

function describe<Options>(command: Command, { summary, more, examples }: CommandDefinition<Options>): void {
  command.summary(summary)
  command.description(more === undefined ? `${summary}.` : `${summary}.\n${more}`)
  command.addHelpText('after', `\nExamples:\n${examples.map((example) => `  holdfast ${example}`).join('\n')}`)
  command.exitOverride((error) => {
    throw isHelp(error) ? error : new UsageError(`${explained(error)}\n  usage:   ${usageOf(command)}\n  example: holdfast ${examples[0]}`)
  })
}

function onAction<Options>(command: Command, host: Host, { run }: CommandDefinition<Options>): void {
  command.action(async () => {
    host.answer(await run(host.context, command.optsWithGlobals<Options & GlobalOptions>(), command.processedArgs as readonly Argument[]))
  })
}

export const isHelp = (error: CommanderError): boolean =>
  error.code === 'commander.helpDisplayed' || error.code === 'commander.version' || error.code === 'commander.help'

/** Commander's sentence, less its `error: ` and with its suggestion on the same line. */
export const explained = ({ message }: CommanderError): string =>
  message
    .replace(/^error: /, '')
    .replace(/\n\(/, ' (')
    .trimEnd()

const usageOf = (command: Command): string => {
  const names: string[] = []
  for (let each: Command | null = command; each !== null; each = each.parent) names.unshift(each.name())
  return `${names.join(' ')} ${command.usage()}; all of it: ${names.join(' ')} --help`
}

export function unknownCommand(group: Command, word: string): string {
  const names = group.commands.map((command) => command.name()).filter((name) => name !== 'help')
  const path = group.parent === null ? group.name() : `${group.parent.name()} ${group.name()}`
  return `there is no command ${JSON.stringify(word)} in ${path}; there are: ${names.join(', ')}\n  all of it: ${path} --help`
}

/** An option with a closed set of values, which the help and the refusal list. */
export const choice = (flags: string, description: string, values: readonly string[]): Option =>
  new Option(flags, description).choices(values)
