import { Reaper } from '@holdfast/engine'
import { createContext, runRole } from '@holdfast/host'
import { readEnv } from './env.ts'
import { ReaperModule } from './reaper.module.ts'

await runRole({
  role: 'reaper',
  readEnv,
  build: async (resources, env) => {
    const app = await createContext(ReaperModule.with(resources, env), resources.logger)
    return { app, loops: [app.get(Reaper)] }
  },
})
