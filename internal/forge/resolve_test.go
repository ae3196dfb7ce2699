package forge

import (
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	for _, c := range []struct{ provider, upstream, api, want string }{
		{"github", "git@github.com:org/app.git", "", "https://api.github.com org/app https://github.com/org/app/settings/keys"},
		{"github", "ssh://git@ssh.github.com:443/org/app.git", "", "https://api.github.com org/app https://github.com/org/app/settings/keys"},
		{"github", "git@ghe.example:org/app", "", "https://ghe.example/api/v3 org/app https://ghe.example/org/app/settings/keys"},
		{"gitea", "ssh://git@forge.example:2222/org/app.git", "", "https://forge.example/api/v1 org/app https://forge.example/org/app/settings/keys"},
		{"gitea", "git@forge.example:org/app.git", "http://10.0.0.5:3000/api/v1/", "http://10.0.0.5:3000/api/v1 org/app http://10.0.0.5:3000/org/app/settings/keys"},
		{"gitea", "git@forge.example:org/app.git", "http://10.0.0.5:3000/", "http://10.0.0.5:3000/api/v1 org/app http://10.0.0.5:3000/org/app/settings/keys"},
		{"gitea", "git@forge.example:org/app.git", "https://forge.example", "https://forge.example/api/v1 org/app https://forge.example/org/app/settings/keys"},
		{"gitea", "git@forge.example:org/app.git", "https://forge.example/git", "https://forge.example/git/api/v1 org/app https://forge.example/org/app/settings/keys"},
		{"gitea", "git@forge.example:org/app.git", "https://proxy.example/forge/api", "https://proxy.example/forge/api org/app https://proxy.example/org/app/settings/keys"},
		{"gitlab", "git@lab.example:group/app.git", "https://lab.example:8443", "https://lab.example:8443/api/v4 group/app https://lab.example:8443/group/app/-/settings/repository"},
		{"github", "git@ghe.example:org/app", "https://ghe.example", "https://ghe.example/api/v3 org/app https://ghe.example/org/app/settings/keys"},
		{"github", "git@github.com:org/app.git", "https://github.com", "https://api.github.com org/app https://github.com/org/app/settings/keys"},
		{"github", "git@acme.ghe.com:org/app.git", "https://api.acme.ghe.com", "https://api.acme.ghe.com org/app https://api.acme.ghe.com/org/app/settings/keys"},
		{"gitlab", "git@gitlab.com:group/sub/app.git", "", "https://gitlab.com/api/v4 group/sub/app https://gitlab.com/group/sub/app/-/settings/repository"},
		{"gitea", "git@forge.example:group/sub/app.git", "", "!OWNER/NAME"},
		{"gitea", "git@forge.example:../app.git", "", "!OWNER/NAME"},
		{"gitea", "/srv/app.git", "", "!not a known forge"},
		{"gitea", "file:///srv/app.git", "", "!not a known forge"},
		{"bitbucket", "git@x:a/b", "", "!not a known forge"},
		{"gitea", "git@x:a/b", "https://user:pw@x/api", "!api_url"},
		{"gitea", "git@x:a/b", "ftp://x", "!api_url"},
	} {
		got, err := Resolve(c.provider, c.upstream, c.api)
		if bad, ok := strings.CutPrefix(c.want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("%+v: %v", c, err)
			}
		} else if s := got.API + " " + got.Repo + " " + got.Settings; err != nil || s != c.want {
			t.Errorf("%+v: %s %v", c, s, err)
		}
	}
}
