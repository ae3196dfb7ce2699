package plan

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// User describes the user inside, with its IDs on the host.
type User struct {
	User             bottle.User
	HostUID, HostGID uint32
	Stray            bool // the host's ids are nobody's, chosen at random
}

// Ids that nothing on a host has: above what distributions, containers and
// systemd hand out (systemd's UIDS-GIDS table leaves 1879048192 and up unused).
const (
	strayBase  = 1_907_000_000
	straySpan  = 1 << 20
	insideUID  = 1000
	insideName = "carboy"
)

// Whoami returns the identity for a bottle. An ordinary user stays that user. Root becomes
// the owner of the workspace, or, if root owns it, an id that owns nothing: root's rights
// never reach a bottle.
func Whoami(workspace string) (User, error) {
	if uid := os.Geteuid(); uid != 0 {
		u := bottle.User{UID: uint32(uid), GID: uint32(os.Getegid())}
		u.Name, u.Home = names(u.UID)
		return User{User: u, HostUID: u.UID, HostGID: u.GID}, nil
	}
	if workspace != "" {
		var st unix.Stat_t
		if err := unix.Stat(workspace, &st); err != nil {
			return User{}, &os.PathError{Op: "stat", Path: workspace, Err: err}
		}
		if st.Uid != 0 && st.Gid != 0 {
			u := bottle.User{UID: st.Uid, GID: st.Gid}
			u.Name, u.Home = names(u.UID)
			return User{User: u, HostUID: st.Uid, HostGID: st.Gid}, nil
		}
	}
	id, err := strayID()
	if err != nil {
		return User{}, err
	}
	return User{
		User:    bottle.User{UID: insideUID, GID: insideUID, Name: insideName, Home: "/home/" + insideName},
		HostUID: id, HostGID: id, Stray: true,
	}, nil
}

// strayID returns an id that owns nothing, for a bottle of root's. In a container's user
// namespace only some ids exist. There it returns nobody, or root if that is the only id
// and maps to an ordinary user outside.
func strayID() (uint32, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("choose an id: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return 0, err
	}
	for _, id := range []uint32{strayBase + binary.LittleEndian.Uint32(b[:])%straySpan, 65534} {
		if _, ok := outside(string(maps), id); ok {
			return id, nil
		}
	}
	if host, ok := outside(string(maps), 0); ok && host != 0 {
		return 0, nil
	}
	return 0, &bottle.UnavailableError{
		Backend: "carboy", Reason: "this is root, and its user namespace has no other id to run a bottle as",
		Advice: "run carboy as an ordinary user",
	}
}

// outside translates an id of this user namespace to the parent's.
func outside(uidMap string, id uint32) (uint32, bool) {
	for _, line := range strings.Split(uidMap, "\n") {
		var in, out, n uint32
		if _, err := fmt.Sscan(line, &in, &out, &n); err == nil && id >= in && id-in < n {
			return out + id - in, true
		}
	}
	return 0, false
}

var safeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`) })

var safeHome = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/[A-Za-z0-9._/-]{1,200}$`) })

// names returns the account's names, if a passwd file can hold them.
func names(uid uint32) (name, home string) {
	name, home = insideName, "/home/"+insideName
	u, err := user.LookupId(strconv.Itoa(int(uid)))
	if err != nil {
		return name, home
	}
	if safeName().MatchString(u.Username) && u.Username != "root" {
		name = u.Username
	}
	if safeHome().MatchString(u.HomeDir) && u.HomeDir != "/root" && u.HomeDir != "/nonexistent" {
		home = u.HomeDir
	}
	return name, home
}
