package secret

import (
	"regexp"
	"strings"
	"sync"
)

// NameSays reports whether a variable's name says that it holds a secret.
func NameSays(name string) bool {
	n := strings.ToUpper(name)
	for _, part := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "PRIVATE_KEY", "CREDENTIAL", "ACCESS_KEY"} {
		if strings.Contains(n, part) {
			return true
		}
	}
	return strings.HasSuffix(n, "_KEY") || strings.HasSuffix(n, "_PAT")
}

// NotShown stands in messages for what may be the secret itself: somebody who
// pastes a value where its variable's name belongs must not find it in a log.
const NotShown = "[not shown]"

// NameOrHidden is the name of a variable as messages may show it: words in
// capitals, as variables have them. Keys and passwords have digits amid letters,
// small letters, or more letters than words.
func NameOrHidden(s string) string {
	if len(s) <= 64 && conventionalName().MatchString(s) {
		return s
	}
	return NotShown
}

var conventionalName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^_*[A-Z]{1,14}[0-9]{0,2}(_+([A-Z]{1,14}[0-9]{0,2}|[0-9]{1,2}))*$`)
})
