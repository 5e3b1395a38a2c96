// npm run test:model -- [--programs 1000] [--seed=N]: random programs against the model of the specification, see tests/model.
import { parseArgs } from 'node:util'
import { root } from './run.ts'
import { lastLine, runTests } from './test.ts'

const refuse = (message: string): never => {
  process.stderr.write(`test:model: ${message}\nUsage: npm run test:model -- [--programs 1000] [--seed=N]\n`)
  process.exit(2)
}
const wholeNumber = (name: string, text: string, least: number): string =>
  /^-?\d{1,10}$/.test(text) && Number(text) >= least && Number(text) <= 2 ** 31 - 1
    ? text
    : refuse(`--${name} takes a whole number from ${least} to ${2 ** 31 - 1}, and not ${text}`)

const options = { programs: { type: 'string', default: '1000' }, seed: { type: 'string' } } as const
const given = (() => {
  try {
    return parseArgs({ options }).values
  } catch (error) {
    return refuse(error instanceof Error ? error.message : String(error))
  }
})()
process.env['HOLDFAST_MODEL_PROGRAMS'] = wholeNumber('programs', given.programs, 1)
if (given.seed !== undefined) process.env['HOLDFAST_MODEL_SEED'] = wholeNumber('seed', given.seed, -(2 ** 31)) // what fast-check prints when a program fails
process.chdir(root)
const result = await runTests(['--project', 'tests', 'tests/model/model.test.ts'])
process.exitCode = result.exitCode
process.stdout.write(lastLine(result))
