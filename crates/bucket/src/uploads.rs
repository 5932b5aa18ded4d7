//! Packs on their way to the store.

use std::sync::{Arc, Weak};

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{PACK_MAX, pack_id},
    rules::Rule,
    shared::{Core, Role, Shared},
};

/// Bytes of packs that are not in the store yet, at which writers wait.
const FRESH_MAX: usize = 96 << 20;

impl Core {
    /// A pack waits for a thread.
    pub(crate) fn enqueue(&mut self, id: (u64, u64), secret: bool, bytes: Vec<u8>) {
        self.fresh_bytes += bytes.len();
        self.fresh.insert(id, Arc::new(bytes));
        self.queue.push_back((id, secret));
    }
}

impl Shared {
    /// After packs were enqueued: they begin to be sent, and the caller waits while there are too many.
    ///
    /// # Errors
    /// Why a pack can't be stored.
    pub(crate) fn sent_on(&self) -> Result<()> {
        if self.log.settings.threads == 0 {
            while self.send_one() {}
        }
        self.changed.notify_all();
        let mut core = self.core.lock();
        while core.fresh_bytes > FRESH_MAX && core.failed.is_none() {
            self.changed.wait(&mut core);
        }
        core.failed.clone().map_or(Ok(()), Err)
    }

    /// Sends a pack that waits; false when none does.
    fn send_one(&self) -> bool {
        let mut core = self.core.lock();
        if core.failed.is_some() {
            return false;
        }
        let Some((id, secret)) = core.queue.pop_front() else { return false };
        let Some(bytes) = core.fresh.get(&id).cloned() else { return true };
        let owner = if self.log.settings.keeps(Rule::OwnNames) { id.0 } else { core.state.at };
        let name = pack_id((owner, id.1), secret).to_string();
        drop(core);
        let created = self.log.create_own(&name, &bytes, PACK_MAX as u64);
        match created {
            Ok(()) => {
                let mut core = self.core.lock();
                core.fresh.remove(&id);
                core.fresh_bytes = core.fresh_bytes.saturating_sub(bytes.len());
                drop(core);
                self.changed.notify_all();
            }
            Err(error) => drop(self.fail(error)),
        }
        true
    }

    /// Waits until packs are in the store.
    ///
    /// # Errors
    /// Why one can't be stored.
    pub(crate) fn wait_for(&self, packs: &[(u64, u64)]) -> Result<()> {
        if self.log.settings.threads == 0 {
            while self.send_one() {}
        }
        let mut core = self.core.lock();
        loop {
            if let Some(error) = &core.failed {
                return Err(error.clone());
            }
            if !packs.iter().any(|id| core.fresh.contains_key(id)) {
                return Ok(());
            }
            self.changed.wait(&mut core);
        }
    }
}

/// Threads that send packs until nobody has the bucket any more, or it was left.
///
/// # Errors
/// `Io` when there is no thread.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<()> {
    for _ in 0..shared.log.settings.threads {
        let weak = Arc::downgrade(shared);
        let thread = std::thread::Builder::new().name("packs".into());
        thread.spawn(move || work(&weak)).map_err(|e| Error::from_io("can't send packs", e))?;
    }
    Ok(())
}

/// Sends packs.
fn work(weak: &Weak<Shared>) {
    loop {
        let Some(shared) = weak.upgrade() else { return };
        let mut core = shared.core.lock();
        if core.queue.is_empty() {
            // Not for long: who has the bucket may have dropped it.
            shared.changed.wait_for(&mut core, std::time::Duration::from_millis(200));
        }
        if core.role == Role::Left || core.failed.is_some() {
            return;
        }
        drop(core);
        while shared.send_one() {}
    }
}

/// The error of a process that wrote while another one had taken its place.
pub(crate) fn shut_out(who: &str) -> Error {
    let who = if who.is_empty() { String::new() } else { format!(" ({who})") };
    let why = format!(
        "another process{who} works on the bucket now, because this one had not been heard of for long: \
         what it had not committed is not there. Start it again"
    );
    Error::new(Kind::Stopped, why)
}
