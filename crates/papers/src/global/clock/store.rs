//! The object store of the model, as one client sees it.

use std::{sync::Arc, time::Duration};

use onefold_core::object::{
    Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal, Space,
    Version, Write,
};

use super::world::{Op, Reply, World};

/// One client's way to the store; one actor uses it.
pub(in super::super) struct ClockedObjects {
    pub(in super::super) world: Arc<World>,
    pub(super) actor: usize,
    client: usize,
}

impl ClockedObjects {
    /// For an actor on a client node.
    pub(in super::super) fn new(world: &Arc<World>, client: usize) -> Arc<ClockedObjects> {
        Arc::new(ClockedObjects { world: world.clone(), actor: world.new_actor(), client })
    }

    /// Lets time pass.
    pub(in super::super) fn sleep(&self, nanoseconds: u64) {
        self.world.ask(self.actor, self.client, vec![Op::Sleep(nanoseconds)]);
    }

    /// Gives the actor its life.
    pub(in super::super) fn start(
        &self,
        life: impl FnOnce() -> onefold_core::Result<()> + Send + 'static,
    ) {
        self.world.start(self.actor, life);
    }

    fn small(&self, object: &ObjectName) {
        self.world.ask(self.actor, self.client, vec![Op::Small(object.clone())]);
    }

    fn me(&self, cookie: &str) -> Holder {
        Holder { identity: self.identity(), cookie: cookie.into() }
    }
}

impl ObjectStore for ClockedObjects {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.world.inner().objects.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let ops = batch.iter().cloned().map(Op::Write).collect();
        let version =
            |reply| if let Reply::Version(version) = reply { version } else { Version(0) };
        self.world
            .ask(self.actor, self.client, ops)
            .into_iter()
            .map(|result| result.map(version))
            .collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let ops = batch.iter().cloned().map(Op::Read).collect();
        let answer = |reply| {
            if let Reply::ReadResult(answer) = reply { Ok(answer) } else { Err(Refusal::Unknown) }
        };
        self.world
            .ask(self.actor, self.client, ops)
            .into_iter()
            .map(|result| result.and_then(answer))
            .collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.small(&ObjectName { pool, name: from.unwrap_or_default().into() });
        Ok(self.world.inner().objects.list(pool, from, most))
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.small(object);
        let now = self.time();
        self.world.inner().objects.lock(object, lock, self.me(cookie), now, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(object, lock, &self.me(cookie))
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.small(object);
        let now = self.time();
        Ok(self.world.inner().objects.holder(object, lock, now))
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.small(object);
        self.world.inner().objects.break_lock(object, lock, holder);
        Ok(())
    }

    fn identity(&self) -> String {
        format!("client.{}", self.actor)
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.world.inner().objects.fence(identity);
        Ok(())
    }

    fn time(&self) -> Duration {
        self.world.time()
    }

    fn monotonic(&self) -> Duration {
        self.world.time()
    }

    fn space(&self) -> Result<Space, Refusal> {
        Ok(Space { total: 1 << 50, used: 0 })
    }
}

#[cfg(test)]
mod tests {
    use onefold_testbed::contract::objects as contract;

    use super::*;

    #[test]
    fn the_contract_holds_while_time_passes() {
        let world = World::new(PoolKind::Replicated, 1);
        let store = ClockedObjects::new(&world, 0);
        let clocked = store.clone();
        store.start(move || {
            assert_eq!(contract::hold(&*clocked, "t."), Ok(()));
            Ok(())
        });
        world.run().unwrap();
        assert!(world.now() > 1_000_000);
    }
}
