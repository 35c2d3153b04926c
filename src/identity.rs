//! Whose rights the process has: root binds what only root may, and then becomes somebody else.

use std::fmt;

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgroups, initgroups, setgid, setgroups, setuid};

/// A user to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
    /// The user's name, where the machine has one for it.
    name: Option<String>,
    /// Whether the group was named, so that the user's other groups do not come with it.
    alone: bool,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({}:{})", self.uid, self.gid),
            None => write!(f, "{}:{}", self.uid, self.gid),
        }
    }
}

/// Whether this process may do everything.
pub fn is_root() -> bool {
    geteuid().is_root()
}

impl Identity {
    /// Finds `name`, `name:group`, or the same in numbers.
    pub fn find(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let known = match user.parse() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)),
            Err(_) => User::from_name(user),
        };
        let known = known.map_err(|error| format!("`{user}`: {error}"))?;
        let uid = match (&known, user.parse()) {
            (Some(known), _) => known.uid,
            (None, Ok(uid)) => Uid::from_raw(uid),
            (None, Err(_)) => return Err(format!("there is no user `{user}` on this machine")),
        };
        let gid = match (group, &known) {
            (Some(group), _) => find_group(group)?,
            (None, Some(known)) => known.gid,
            (None, None) => {
                return Err(format!("the machine does not know {uid}, and so not its group; write {uid}:GROUP"));
            }
        };
        if uid.is_root() || gid.as_raw() == 0 {
            return Err("this is root, or root's group, which is what `user` is there to leave".into());
        }
        Ok(Identity { uid, gid, name: known.map(|known| known.name), alone: group.is_some() })
    }

    /// Whether the process is this user already.
    pub fn is_here(&self) -> bool {
        geteuid() == self.uid && getegid() == self.gid
    }

    /// Becomes this user, for good: all threads, and with no group of root's. Only root can.
    pub fn assume(&self) -> Result<(), String> {
        let failed = |error: nix::Error| format!("cannot become {self}: {error}");
        match self.name.as_deref().filter(|_| !self.alone).and_then(|name| std::ffi::CString::new(name).ok()) {
            Some(name) => initgroups(&name, self.gid),
            None => setgroups(&[self.gid]),
        }
        .map_err(failed)?;
        setgid(self.gid).map_err(failed)?;
        setuid(self.uid).map_err(failed)?;
        let root = Gid::from_raw(0);
        // None of these would be an error of the kernel's own.
        if setuid(Uid::from_raw(0)).is_ok() || getgroups().map_err(failed)?.contains(&root) || !self.is_here() {
            return Err(format!("cannot become {self}: some of root's rights are left"));
        }
        Ok(())
    }
}

fn find_group(text: &str) -> Result<Gid, String> {
    if let Ok(gid) = text.parse() {
        return Ok(Gid::from_raw(gid));
    }
    let known = Group::from_name(text).map_err(|error| format!("`{text}`: {error}"))?;
    known.map(|group| group.gid).ok_or_else(|| format!("there is no group `{text}` on this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let find = |text: &str| Identity::find(text).map(|found| found.to_string());
        let nobody = find("nobody").unwrap();
        assert!(nobody.starts_with("nobody (65534:"), "{nobody}");
        assert_eq!(find("65534").unwrap(), nobody);
        assert_eq!(find("65532:65533").unwrap(), "65532:65533");
        assert_eq!(find("nobody:12").unwrap(), "nobody (65534:12)");
        for (text, told) in [
            ("root", "this is root"),
            ("0:5", "this is root"),
            ("nobody:root", "this is root"),
            ("nobody:0", "this is root"),
            ("no-such-user", "there is no user `no-such-user`"),
            ("nobody:no-such-group", "there is no group `no-such-group`"),
            ("64999", "write 64999:GROUP"),
            ("", "there is no user ``"),
            ("-1:5", "there is no user `-1`"),
        ] {
            let error = find(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
