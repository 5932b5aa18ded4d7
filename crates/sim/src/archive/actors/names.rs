//! Streams are removed and renamed, and their names looked at.

use crate::{
    archive::{
        model::Unsure,
        run::{Flow, Sim},
    },
    checker::{Checker, Failure},
};

impl Sim {
    pub(crate) fn remove(&mut self) -> Flow {
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
        let archive = self.admin()?;
        self.unsure = Some(Unsure::Remove(name.clone()));
        match archive.remove(&name) {
            Ok(()) => {
                self.say(|| format!("removed {name}"));
                self.gone = self.streams.remove(&name);
                self.unsure = None;
                Ok(())
            }
            Err(error) => Err(self.judge("remove", &error)),
        }
    }

    pub(crate) fn rename(&mut self) -> Flow {
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names).cloned() else { return Ok(()) };
        let to = format!("s{}", self.rng.below(6));
        if self.streams.contains_key(&to) {
            return Ok(());
        }
        let archive = self.admin()?;
        if self.places.is_some() {
            let tables = archive.refresh().map_err(|error| self.judge("rename", &error))?;
            // What is left of an erased domain has the name.
            if tables.streams.contains_key(&to) {
                return Ok(());
            }
        }
        self.unsure = Some(Unsure::Rename(name.clone(), to.clone()));
        match archive.rename(&name, &to) {
            Ok(()) => {
                if let Some(content) = self.streams.remove(&name) {
                    self.streams.insert(to, content);
                }
                self.unsure = None;
                Ok(())
            }
            Err(error) => Err(self.judge("rename", &error)),
        }
    }

    /// The names are those of the model.
    pub(crate) fn look_at_names(&mut self) -> Flow {
        self.record_damage_move()?;
        let reads_only = self.rng.percent(20);
        let archive = if reads_only { self.open(false)? } else { self.admin()? };
        let tables = match archive.refresh() {
            Ok(tables) => tables,
            Err(error) => return Err(self.judge("refresh", &error)),
        };
        let there = tables.streams.iter().filter(|(_, one)| !Sim::is_gone(&tables, one.domain));
        let found: Vec<&String> = there.map(|(name, _)| name).collect();
        let expected: Vec<&String> = self.streams.keys().collect();
        if found != expected {
            return Err(Failure::new(
                Checker::DurableSurvives,
                format!("streams {found:?} instead of {expected:?}"),
            )
            .into());
        }
        Ok(())
    }
}
