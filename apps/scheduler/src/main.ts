import { Scheduler } from '@holdfast/engine'
import { createContext, runRole } from '@holdfast/host'
import { readEnv } from './env.ts'
import { loadMachines } from './load-machines.ts'
import { SchedulerModule } from './scheduler.module.ts'

await runRole({
  role: 'scheduler',
  readEnv,
  databaseRole: (env) => (env.HOLDFAST_FLUSH === 'direct' ? 'direct-scheduler' : 'scheduler'),
  build: async (resources, env) => {
    const machines = await loadMachines(env.HOLDFAST_MACHINES)
    resources.logger.info({ machines: machines.map(({ name, version }) => `${name}/${version}`) }, 'machines loaded')
    const app = await createContext(SchedulerModule.with(resources, env, machines), resources.logger)
    return { app, loops: [app.get(Scheduler)] }
  },
})
