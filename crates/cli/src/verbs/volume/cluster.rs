//! `onefold volume` of a store of the cluster engine. A folder may not be served meanwhile.

use onefold_cluster::{Settings, What};
use onefold_core::{Error, Kind};

use onefold::parts::{
    cluster_store::{Opened, Url},
    control::Request,
};
use onefold_console::failure::Failure;

use super::guard;

/// Changes the catalogue; durable on return.
pub(super) fn change(store: &Url, request: &Request) -> Result<(), Failure> {
    let session = &Opened::open(store, Settings::default())?.session;
    guard::size(request, |name| {
        let named = session.find(name).ok().flatten();
        named.filter(|named| named.what == What::Volume).map(|named| named.bytes)
    })?;
    match request {
        Request::VolumeCreate { name, bytes, .. } => session.create_volume(name, *bytes)?,
        Request::VolumeResize { name, bytes, .. } => session.resize_volume(name, *bytes)?,
        Request::VolumeRename { name, new_name } => {
            session.rename(What::Volume, name, new_name)?;
        }
        Request::VolumeDelete { name, .. } => {
            session.delete(name, What::Volume)?;
            while session.delete_step()? {}
        }
        _ => {
            let why = "volumes of the cluster engine have no limits, and share all blocks";
            return Err(Error::new(Kind::Unsupported, why).into());
        }
    }
    Ok(())
}
