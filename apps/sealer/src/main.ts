import { createContext, runRole } from '@holdfast/host'
import { readEnv } from './env.ts'
import { SealerModule } from './sealer.module.ts'

await runRole({
  role: 'sealer',
  readEnv,
  build: async ({ logger }) => ({ app: await createContext(SealerModule.create(), logger), loops: [] }),
})
