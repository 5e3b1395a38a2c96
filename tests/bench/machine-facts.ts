import { cpus, totalmem } from 'node:os'
import { type BenchServer, SERVER_SETTINGS } from './bench-server.ts'

/** Where a result comes from: figures of two machines cannot be compared, nor those of two hours of a shared one. */
export const machineFacts = async (server: BenchServer) => ({
  at: new Date().toISOString(),
  cpu: cpus()[0]?.model ?? '?',
  cores: cpus().length,
  memory_gib: Math.round(totalmem() / 2 ** 30),
  node: process.version,
  postgres: await server.version(),
  settings: SERVER_SETTINGS,
})
