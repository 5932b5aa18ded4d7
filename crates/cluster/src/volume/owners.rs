//! The owners of all volumes, as their headers name them.

use onefold_core::{
    Result,
    object::{ObjectName, Read, ReadPart, Refusal},
};

use super::{
    header::{self, LOCK, OWNER},
    ownership::parse_owner,
};
use crate::{
    replies::{failed, first_value, until_answered},
    session::Session,
};

/// Headers that are read together.
const HEADERS: usize = 64;

/// The owners of volumes, as their headers name them, with the volumes' names.
fn owners(session: &Session) -> Result<Vec<(String, ObjectName, String)>> {
    let (kernel, mut owners) = (session.kernel(), Vec::new());
    for some in session.volumes()?.chunks(HEADERS) {
        let read = |id: u64| Read {
            object: header::name(id),
            parts: vec![ReadPart::Keys(vec![OWNER.to_vec()])],
        };
        let reads: Vec<Read> = some.iter().map(|(_, named)| read(named.id)).collect();
        for ((name, read), found) in
            some.iter().map(|(name, _)| name).zip(&reads).zip(kernel.read_all(&reads))
        {
            let value = match found {
                // It was deleted meanwhile.
                Err(Refusal::Missing) => continue,
                found => {
                    let found = found
                        .map_err(|why| failed("the owner of a volume can't be looked up", why))?;
                    first_value(&found)
                }
            };
            if let Some((true, identity)) = parse_owner(&value) {
                owners.push((name.clone(), read.object.clone(), identity));
            }
        }
    }
    Ok(owners)
}

/// A volume whose owner holds its lock, and is neither this session nor one that it knows to be shut out.
pub(crate) fn written_by_another(session: &Session) -> Result<Option<String>> {
    let store = session.store();
    let me = store.identity();
    for (name, header, identity) in owners(session)? {
        if identity == me || session.shut_out().lock().contains(&identity) {
            continue;
        }
        let holder =
            until_answered(session.kernel().settings().tries, || store.holder(&header, LOCK));
        let holder = holder.map_err(|why| failed("a lock can't be looked up", why))?;
        if holder.is_some_and(|holder| holder.identity == identity) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The names of the volumes that sessions owned when they were shut out.
pub(super) fn volumes_of(session: &Session, identities: &[String]) -> Result<Vec<String>> {
    let mut owners = owners(session)?;
    owners.retain(|(.., owner)| identities.contains(owner));
    Ok(owners.into_iter().map(|(name, ..)| name).collect())
}
