package builder

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// account is a user of the image.
type account struct {
	uid, gid int
	groups   []int
	home     string
}

// maxAccounts bounds what is read of a list of accounts, in bytes.
const maxAccounts = 16 << 20

// lookUp finds USER or USER:GROUP in the image's own lists. Both may be numbers, which need
// not be listed. Empty is root.
func lookUp(spec string) (account, error) {
	users, err := table("/etc/passwd", 7)
	if err != nil {
		return account{}, err
	}
	groups, err := table("/etc/group", 4)
	if err != nil {
		return account{}, err
	}
	return find(spec, users, groups)
}

func find(spec string, users, groups [][]string) (a account, err error) {
	user, group, grouped := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	a.home = "/"
	n, numeric := id(user)
	i := slices.IndexFunc(users, func(u []string) bool { return u[0] == user || numeric && u[2] == user })
	switch {
	case i < 0 && !numeric:
		return a, fmt.Errorf("the image has no user %q", user)
	case i < 0:
		a.uid = n
		if n == 0 {
			a.home = "/root"
		}
	default:
		uid, ok1 := id(users[i][2])
		gid, ok2 := id(users[i][3])
		if !ok1 || !ok2 {
			return a, fmt.Errorf("the image's user %q has no numbers", user)
		}
		a.uid, a.gid, a.home = uid, gid, users[i][5]
		user = users[i][0]
	}
	if !grouped {
		for _, g := range groups {
			if n, ok := id(g[2]); ok && slices.Contains(strings.Split(g[3], ","), user) && len(a.groups) < 1000 {
				a.groups = append(a.groups, n)
			}
		}
		return a, nil
	}
	if n, ok := id(group); ok {
		a.gid = n
		return a, nil
	}
	i = slices.IndexFunc(groups, func(g []string) bool { return g[0] == group })
	if i < 0 {
		return a, fmt.Errorf("the image has no group %q", group)
	}
	var ok bool
	if a.gid, ok = id(groups[i][2]); !ok {
		return a, fmt.Errorf("the image's group %q has no number", group)
	}
	return a, nil
}

func id(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}

// table reads the lines that have all fields. A missing file is empty.
func table(name string, fields int) (out [][]string, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(io.LimitReader(f, maxAccounts)); s.Scan(); {
		if l := strings.Split(s.Text(), ":"); len(l) == fields {
			out = append(out, l)
		}
	}
	return out, nil
}
