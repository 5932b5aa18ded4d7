//! Volumes made, resized, renamed and deleted: each change takes the commit lock only, and is
//! durable on return.

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{domain::FIRST_DOMAIN, parameters::VOLUME_BLOCK_BYTES, record::Record},
    operations_log::{Archive, domain_of, is_there},
    tables::{Tables, VOLUME_BYTES_MAX, VOLUME_NAME_BYTES_MAX, Volume},
};

/// The size that a volume gets when somebody asks for `bytes`: whole blocks.
///
/// # Errors
/// `InvalidInput` for nothing, and for more than [`VOLUME_BYTES_MAX`].
pub fn volume_bytes(bytes: u64) -> Result<u64> {
    match bytes.checked_next_multiple_of(VOLUME_BLOCK_BYTES) {
        Some(whole) if whole > 0 && whole <= VOLUME_BYTES_MAX => Ok(whole),
        Some(0) => Err(Error::new(Kind::InvalidInput, "a volume has at least one byte")),
        _ => Err(Error::new(Kind::InvalidInput, "a volume can't be larger than 64 PiB")),
    }
}

fn valid_volume_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "a volume's name has 1 to {VOLUME_NAME_BYTES_MAX} bytes and no control characters"
        );
        return Err(Error::new(Kind::InvalidInput, message));
    }
    Ok(())
}

/// Makes a volume in the domain of this number, to which the volume and its clones belong for ever.
///
/// # Errors
/// `Denied`: the domain was erased, or is not there. `Unsupported` in an archive to which a program gave
/// domains that knew none of volumes. As [`create_volume`](Archive::create_volume).
pub fn create_volume_in(
    archive: &Archive,
    domain: u32,
    name: &str,
    bytes: u64,
    now: u64,
) -> Result<()> {
    valid_volume_name(name)?;
    let bytes = volume_bytes(bytes)?;
    if domain != FIRST_DOMAIN {
        if archive.label().domains && !archive.label().volume_domains {
            return Err(Error::new(
                Kind::Unsupported,
                "the archive got its domains by a program that knew no volumes in them: `onefold upgrade` \
                 gives it these",
            ));
        }
        archive.refresh()?;
        domain_of(archive, domain)?;
    }
    let decide = |tables: &Tables| {
        is_there(tables, domain)?;
        free_name(tables, name)?;
        Ok(vec![Record::VolumeCreated {
            id: tables.volumes.next_number(),
            name: name.to_owned(),
            bytes,
            created: now,
            domain,
        }])
    };
    archive.commit(false, decide).map(|_| ())
}

/// Volume verbs: each takes the commit lock only, and is durable on return.
impl Archive {
    /// Makes a volume of `bytes` bytes, rounded up to whole blocks, all zeroes, in the domain that the
    /// archive began with. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, and as for every change.
    pub fn create_volume(&self, name: &str, bytes: u64, now: u64) -> Result<()> {
        create_volume_in(self, FIRST_DOMAIN, name, bytes, now)
    }

    /// Makes a volume that holds what volume `of` holds, in the same domain, without a byte of data written: both share
    /// their map until one of them is written to. With `read_only` nobody writes to it. Whoever
    /// serves the volume makes durable first what its clients wrote: [`Volumes::clone_volume`].
    ///
    /// [`Volumes::clone_volume`]: super::Volumes::clone_volume
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`; `Denied`: the domain of `of` was erased; `Unsupported` in an archive that a program made which
    /// knew no clones; and as for every change.
    pub fn clone_volume(&self, of: &str, name: &str, read_only: bool, now: u64) -> Result<()> {
        valid_volume_name(name)?;
        if !self.label().clones {
            return Err(Error::new(
                Kind::Unsupported,
                "the archive was made by a program that knew no clones of volumes: `onefold upgrade` \
                 gives it these",
            ));
        }
        let decide = |tables: &Tables| {
            let (of, source) = tables.volumes.named(of)?;
            is_there(tables, source.domain)?;
            free_name(tables, name)?;
            let (id, name) = (tables.volumes.next_number(), name.to_owned());
            Ok(vec![Record::VolumeCloned { id, of, name, created: now, read_only }])
        };
        self.commit(false, decide).map(|_| ())
    }

    /// Changes the size of a volume. Bytes beyond a smaller size are gone.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput`; `Denied`: it is read-only, or its domain was erased; and as for every
    /// change.
    pub fn resize_volume(&self, name: &str, bytes: u64) -> Result<()> {
        let bytes = volume_bytes(bytes)?;
        self.commit(true, |tables| {
            let (id, volume) = tables.volumes.named(name)?;
            writable(volume)?;
            is_there(tables, volume.domain)?;
            Ok(vec![Record::VolumeResized { id, bytes }])
        })
        .map(|_| ())
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`, and as for every change.
    pub fn rename_volume(&self, from: &str, to: &str) -> Result<()> {
        valid_volume_name(to)?;
        let decide = |tables: &Tables| {
            let (id, _) = tables.volumes.named(from)?;
            free_name(tables, to)?;
            Ok(vec![Record::VolumeRenamed { id, name: to.to_owned() }])
        };
        self.commit(true, decide).map(|_| ())
    }

    /// Deletes a volume, also one of a domain that was erased; its space comes back with garbage collection.
    ///
    /// # Errors
    /// `NotFound`, and as for every change.
    pub fn delete_volume(&self, name: &str) -> Result<()> {
        self.commit(true, |tables| {
            Ok(vec![Record::VolumeDeleted { id: tables.volumes.named(name)?.0 }])
        })
        .map(|_| ())
    }
}

/// Fails for a volume to which nobody writes.
pub(super) fn writable(volume: &Volume) -> Result<()> {
    if volume.read_only {
        let message = format!("volume '{}' is read-only", volume.name.escape_debug());
        return Err(Error::new(Kind::Denied, message));
    }
    Ok(())
}

fn free_name(tables: &Tables, name: &str) -> Result<()> {
    match tables.volumes.named(name) {
        Ok(_) => Err(Error::new(
            Kind::Exists,
            format!("there is a volume '{}' already", name.escape_debug()),
        )),
        Err(_) => Ok(()),
    }
}
