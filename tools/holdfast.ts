// npm run holdfast -- <args>: the command of packages/cli, run from its sources, in the folder that it was typed in.
import { main } from '@holdfast/cli'
import { typedIn } from './env.ts'

const folder = typedIn()
if (folder !== undefined) process.chdir(folder)
await main()
