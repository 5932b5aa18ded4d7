//! Breaches of rules, which only the simulator's planted bugs make.

use std::collections::BTreeMap;

use onefold_core::VolumeId;

use crate::{
    format::catalogue::Volume,
    moments::{Act, Moment},
};

/// Volumes are rolled back before the changes of the moment reach their maps.
pub(super) fn roll_back(moment: Option<&Moment>, volumes: &mut BTreeMap<VolumeId, Volume>) {
    for act in moment.into_iter().flat_map(|moment| &moment.acts) {
        let Act::Rollback { volume, to, .. } = act else { continue };
        let Some(snapshot) = volumes.get(to).cloned() else { continue };
        if let Some(volume) = volumes.get_mut(volume) {
            volume.map = snapshot.map;
        }
    }
}
