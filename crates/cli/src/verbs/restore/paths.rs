//! Paths of files that have several names. Each directory on the way is there once, however long the
//! paths are, and so their memory is that of the names that the snapshot has.

/// A name of a file: the number of its directory, and its last part.
pub(super) struct Name(usize, Box<[u8]>);

impl Name {
    /// The number of its directory, in the order of a walk.
    pub(super) fn directory(&self) -> usize {
        self.0
    }
}

/// Memory of a name, or of a directory, beside its letters.
const BESIDE: usize = 64;

/// Most bytes of all.
const BYTES_MAX: usize = 256 << 20;

/// The directories of names, which come in the order of a walk.
#[derive(Default)]
pub(super) struct Paths {
    /// The directory above, and the name in it; the root has none.
    directories: Vec<(usize, Box<[u8]>)>,
    /// The path of the directory at hand.
    at: Vec<u8>,
    /// Those that lead there: the lengths of their paths, and their numbers.
    open: Vec<(usize, usize)>,
    bytes: usize,
}

impl Paths {
    /// Remembers a path; `None` when there is no room.
    pub(super) fn add(&mut self, path: &[u8]) -> Option<Name> {
        let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let above = &path[..end];
        let leads = |at: &[u8]| {
            above.strip_prefix(at).is_some_and(|rest| rest.first().is_none_or(|&b| b == b'/'))
        };
        while !self.open.is_empty() && !leads(&self.at) {
            self.open.pop();
            self.at.truncate(self.open.last().map_or(0, |(length, _)| *length));
        }
        let name = &path[if end == 0 && path.first() != Some(&b'/') { 0 } else { end + 1 }..];
        self.bytes += name.len() + BESIDE;
        for part in above[self.at.len()..].split(|&byte| byte == b'/') {
            if part.is_empty() {
                continue;
            }
            self.bytes += part.len() + BESIDE;
            let over = self.open.last().map_or(0, |(_, number)| *number + 1);
            self.directories.push((over, part.into()));
            if !self.at.is_empty() {
                self.at.push(b'/');
            }
            self.at.extend_from_slice(part);
            self.open.push((self.at.len(), self.directories.len() - 1));
        }
        let directory = self.open.last().map_or(0, |(_, number)| *number + 1);
        (self.bytes <= BYTES_MAX).then(|| Name(directory, name.into()))
    }

    /// The path of a name.
    pub(super) fn path(&self, name: &Name) -> Vec<u8> {
        let (mut at, mut parts): (_, Vec<&[u8]>) = (name.0, vec![&name.1]);
        while let Some((above, part)) = at.checked_sub(1).and_then(|n| self.directories.get(n)) {
            parts.push(part);
            at = *above;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_and_share_their_directories() {
        let mut paths = Paths::default();
        let all = ["a", "b/c", "b/c.d/e", "b/c.d/f", "b/c/d", "b/c/d2/e", "ba", "c/d/e/f", "d"];
        let names: Vec<Name> = all.iter().map(|path| paths.add(path.as_bytes()).unwrap()).collect();
        for (name, path) in names.iter().zip(all) {
            assert_eq!(paths.path(name), path.as_bytes());
        }
        // b, b/c.d, b/c, b/c/d2, c, c/d, c/d/e
        assert_eq!(paths.directories.len(), 7);
    }

    #[test]
    fn rule_05_names_below_long_paths_take_the_memory_of_names() {
        let mut paths = Paths::default();
        let above = [&[b'd'; 250][..]; 60].join(&b'/');
        let names = (0..20_000).map(|n| [&above[..], format!("/{n}").as_bytes()].concat());
        assert!(names.map(|path| paths.add(&path)).all(|name| name.is_some()));
        assert!(paths.bytes < 2 << 20, "{}", paths.bytes);
        let many = (0..8 << 20).map(|n| format!("x/{n}"));
        assert!(many.map(|path| paths.add(path.as_bytes())).any(|name| name.is_none()));
    }
}
