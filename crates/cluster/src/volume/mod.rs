//! Volumes: striped over metadata objects, one writer each.
//!
//! | module | what |
//! |---|---|
//! | [`attach`] | the owner's lock, takeover with fencing, the rescan after a crash |
//! | [`header`] | size, owner, bitmap of objects, long discards: keys of the volume's header |
//! | [`queue`], [`group_commit`], [`write`], [`read`] | the foreground |
//! | [`inline`] | writes that are deduplicated as they come |
//! | [`discard`] | long trims, applied later and honoured at once |
//! | [`cache_manager`], [`promotion`] | hot chunks, and keeping them in metadata objects |
//! | [`serve`] | the same as a [`onefold_core::Volume`], for servers |

mod attach;
pub(crate) mod cache_manager;
mod discard;
mod group_commit;
pub(crate) mod header;
mod inline;
mod object;
mod promotion;
mod queue;
mod read;
mod serve;
mod write;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex};

use self::object::Object;
pub use self::{attach::Mode, serve::ClusterExports};

use crate::{format::ObjectId, session::Session};

/// A volume that is attached.
pub struct Volume {
    session: Arc<Session>,
    id: u64,
    name: String,
    size: AtomicU64,
    /// Nobody writes through it.
    read_only: bool,
    objects: Mutex<BTreeMap<u64, Arc<Mutex<Object>>>>,
    bits: Mutex<header::Bits>,
    discards: Mutex<Vec<header::Discard>>,
    last_discard: Mutex<header::LastDiscard>,
    cache: cache_manager::CacheManager,
    /// There while writes are deduplicated as they come.
    inline: Option<header::Inline>,
    queue: Mutex<queue::Queue>,
    /// A group of writes is over.
    queue_changed: Condvar,
}

impl Volume {
    /// The name of the volume.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the volume.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn object_id(&self, index: u64) -> ObjectId {
        ObjectId { volume: self.id, index }
    }

    fn object_bytes(&self) -> u64 {
        u64::from(self.session.kernel().format().object_bytes)
    }

    fn chunk_bytes(&self) -> u32 {
        self.session.kernel().format().chunk_bytes
    }

    /// The owner's memory of an object, made if need be.
    fn object(&self, index: u64) -> Arc<Mutex<Object>> {
        let mut objects = self.objects.lock();
        if objects.len() >= self.session.kernel().settings().known_objects.max(1)
            && !objects.contains_key(&index)
        {
            // Forgets objects that no thread uses and that are fully recorded; they are read again
            // when needed.
            objects.retain(|_, object| {
                Arc::strong_count(object) > 1 || object.lock().is_not_yet_recorded()
            });
        }
        objects.entry(index).or_default().clone()
    }

    fn within(&self, offset: u64, bytes: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::new(
                Kind::InvalidInput,
                format!("{bytes} bytes at {offset} lie beyond the end of volume {:?}", self.name),
            )),
        }
    }

    fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::Denied, "the volume is attached for reading"));
        }
        self.session.kernel().has_stamps()
    }

    fn foreground(&self, bytes: u64) {
        self.session.kernel().counts().foreground.fetch_add(1, Relaxed);
        self.session.kernel().counts().foreground_bytes.fetch_add(bytes, Relaxed);
    }

    fn failed(&self, index: u64, refusal: onefold_core::object::Refusal) -> Error {
        crate::kernel::failed(format_args!("object {index} of volume {:?}", self.name), refusal)
    }
}
