import { createContext, runRole } from '@holdfast/host'
import { readEnv } from './env.ts'
import { FormationWorkerModule } from './formation-worker.module.ts'

await runRole({
  role: 'formation-worker',
  readEnv,
  build: async ({ logger }) => ({ app: await createContext(FormationWorkerModule.create(), logger), loops: [] }),
})
