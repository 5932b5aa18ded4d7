//! An object store in memory, for tests inside one process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use onefold_core::{
    Error, Kind,
    object::{
        Held, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal,
        Space, Version, Write,
    },
};
use parking_lot::Mutex;

use crate::Objects;

/// One session of an object store in memory.
pub struct MemoryObjects {
    objects: Arc<Mutex<Objects>>,
    identity: String,
    born: Instant,
    /// The time of all sessions' monotonic clocks, once a test sets it.
    passed: Arc<Mutex<Option<Duration>>>,
    /// What the clocks of all hosts show, once a test sets it.
    shown: Arc<Mutex<Option<Duration>>>,
    /// Changes have no reply, and are not applied; reads are answered.
    paused: Arc<AtomicBool>,
    may_fence: bool,
}

impl MemoryObjects {
    /// An empty store and its first session.
    #[must_use]
    pub fn new(chunks: PoolKind) -> MemoryObjects {
        MemoryObjects {
            objects: Arc::new(Mutex::new(Objects::new(chunks))),
            identity: "first".into(),
            born: Instant::now(),
            passed: Arc::default(),
            shown: Arc::default(),
            paused: Arc::default(),
            may_fence: true,
        }
    }

    /// Another session of the same store.
    #[must_use]
    pub fn session(&self, identity: &str) -> MemoryObjects {
        MemoryObjects {
            objects: self.objects.clone(),
            identity: identity.into(),
            born: self.born,
            passed: self.passed.clone(),
            shown: self.shown.clone(),
            paused: self.paused.clone(),
            may_fence: true,
        }
    }

    /// The same session as a user has it who may not fence.
    #[must_use]
    pub fn without_right_to_fence(self) -> MemoryObjects {
        MemoryObjects { may_fence: false, ..self }
    }

    /// Sets what the monotonic clock of every session shows from now on. Until the first call it is that of
    /// this host.
    pub fn set_monotonic(&self, time: Duration) {
        *self.passed.lock() = Some(time);
    }

    /// Sets what the clocks of all hosts show from now on, since 1970. Until the first call it is that of this
    /// host.
    pub fn set_time(&self, time: Duration) {
        *self.shown.lock() = Some(time);
    }

    fn now(&self) -> Duration {
        self.shown.lock().unwrap_or_else(wall_time)
    }

    /// Lets the store take no changes of any session, or take them again; reads are answered all the same.
    pub fn pause_writes(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    fn me(&self, cookie: &str) -> Holder {
        Holder { identity: self.identity.clone(), cookie: cookie.into() }
    }
}

/// The time of this host since 1970.
fn wall_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl ObjectStore for MemoryObjects {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.objects.lock().kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let mut objects = self.objects.lock();
        let fenced = objects.is_fenced(&self.identity);
        let paused = self.paused.load(Relaxed);
        let mut one = |op: &Write| {
            if paused {
                Err(Refusal::Unknown)
            } else if fenced {
                Err(Refusal::Fenced)
            } else {
                objects.write(op, self.now(), 0)
            }
        };
        batch.iter().map(&mut one).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let objects = self.objects.lock();
        batch
            .iter()
            .map(|op| {
                if objects.is_fenced(&self.identity) {
                    Err(Refusal::Fenced)
                } else {
                    objects.read(op)
                }
            })
            .collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        Ok(self.objects.lock().list(pool, from, most))
    }

    fn lists_by_name(&self) -> bool {
        true
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        let mut objects = self.objects.lock();
        if objects.is_fenced(&self.identity) {
            return Err(Refusal::Fenced);
        }
        objects.lock(object, lock, self.me(cookie), self.now(), lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(object, lock, &self.me(cookie))
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        Ok(self.objects.lock().holder(object, lock, self.now()))
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.objects.lock().break_lock(object, lock, holder);
        Ok(())
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.may_fence()?;
        self.objects.lock().fence(identity);
        Ok(())
    }

    fn may_fence(&self) -> Result<(), Refusal> {
        match self.may_fence {
            true => Ok(()),
            false => {
                Err(Refusal::Denied(Error::new(Kind::Denied, "the right to fence is missing")))
            }
        }
    }

    fn is_identity(&self, text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    fn time(&self) -> Duration {
        self.now()
    }

    fn monotonic(&self) -> Duration {
        self.passed.lock().unwrap_or_else(|| self.born.elapsed())
    }

    fn held(&self, pool: Pool) -> Result<Option<Held>, Refusal> {
        Ok(Some(self.objects.lock().held(pool)))
    }

    fn space(&self) -> Result<Space, Refusal> {
        Ok(Space { total: u64::MAX, used: self.objects.lock().bytes() })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::contract::objects as contract;

    #[test]
    fn memory_keeps_the_contract_of_object_stores() {
        for kind in [PoolKind::Replicated, PoolKind::Erasure] {
            assert_eq!(contract::hold(&MemoryObjects::new(kind), "t."), Ok(()));
        }
    }

    #[test]
    fn a_fenced_session_is_shut_out() {
        let one = MemoryObjects::new(PoolKind::Replicated);
        let two = one.session("second");
        two.fence("first").unwrap();
        let op = Write { object: ObjectName::metadata("x"), guards: vec![], changes: vec![] };
        assert!(matches!(one.write(std::slice::from_ref(&op))[0], Err(Refusal::Fenced)));
        assert!(two.write(&[op])[0].is_ok());
    }
}
