//! The simulated object store, as one actor sees it: each operation hands the baton back.

use std::{sync::Arc, time::Duration};

use onefold_core::object::{
    Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal, Space,
    Version, Write,
};

use super::world::{Op, Reply, World};

/// One session of the simulated store, for one actor.
pub(super) struct SimStore {
    pub(super) world: Arc<World>,
    pub(super) actor: usize,
    pub(super) identity: String,
}

impl SimStore {
    /// The name of this session.
    pub(super) fn identity_text(&self) -> String {
        self.identity.clone()
    }

    fn one(&self, op: Op) -> Result<Reply, Refusal> {
        self.world.ask(self.actor, &self.identity, vec![op]).remove(0)
    }
}

impl ObjectStore for SimStore {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.world.inner().objects.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let ops = batch.iter().cloned().map(Op::Write).collect();
        let version =
            |reply| if let Reply::Version(version) = reply { version } else { Version(0) };
        self.world
            .ask(self.actor, &self.identity, ops)
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
            .ask(self.actor, &self.identity, ops)
            .into_iter()
            .map(|result| result.and_then(answer))
            .collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        match self.one(Op::List(pool, from.map(str::to_owned), most))? {
            Reply::Page(page) => Ok(page),
            _ => Err(Refusal::Unknown),
        }
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.one(Op::Lock(object.clone(), lock, cookie.into(), lease)).map(|_| ())
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(
            object,
            lock,
            &Holder { identity: self.identity.clone(), cookie: cookie.into() },
        )
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        match self.one(Op::Holder(object.clone(), lock))? {
            Reply::Holder(holder) => Ok(holder),
            _ => Err(Refusal::Unknown),
        }
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.one(Op::Break(object.clone(), lock, holder.clone())).map(|_| ())
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.one(Op::Fence(identity.into())).map(|_| ())
    }

    fn time(&self) -> Duration {
        self.world.inner().clock_of(self.actor)
    }

    fn monotonic(&self) -> Duration {
        self.world.inner().monotonic_of(self.actor)
    }

    fn recovers(&self) -> bool {
        // Every third ten seconds.
        let inner = self.world.inner();
        inner.params.recovers && !inner.calm && (inner.now.as_secs() / 10).is_multiple_of(3)
    }

    fn space(&self) -> Result<Space, Refusal> {
        Ok(Space { total: 1 << 40, used: self.world.inner().objects.bytes() })
    }
}
