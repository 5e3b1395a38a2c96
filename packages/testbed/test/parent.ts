// A process that starts a server on a folder and says so; postgres.test.ts kills it, or asks for the folder meanwhile.
import { startPostgres } from '../src/postgres.ts'

const [dataDir = ''] = process.argv.slice(2)
const { port, pid } = await startPostgres(dataDir === '' ? {} : { dataDir })
process.stdout.write(`${JSON.stringify({ port, pid })}\n`)
process.stdin.resume() // stays until it is killed, or its parent goes
process.stdin.once('end', () => process.exit(0))
