package secret

import (
	"regexp"
	"strings"
	"sync"
)

// NameSays reports whether a variable's name suggests a secret.
func NameSays(name string) bool {
	n := strings.ToUpper(name)
	for _, part := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "PRIVATE_KEY", "CREDENTIAL", "ACCESS_KEY"} {
		if strings.Contains(n, part) {
			return true
		}
	}
	return strings.HasSuffix(n, "_KEY") || strings.HasSuffix(n, "_PAT")
}

// NotShown replaces text in messages that may be a secret: someone may paste a value
// where its variable's name belongs, and it must not get into a log.
const NotShown = "[not shown]"

// NameOrHidden returns name if it looks like a variable's, which is words in
// capitals, and otherwise NotShown. Keys and passwords have digits amid letters,
// lower case, or more letters than words.
func NameOrHidden(s string) string {
	if len(s) <= 64 && conventionalName().MatchString(s) {
		return s
	}
	return NotShown
}

var conventionalName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^_*[A-Z]{1,14}[0-9]{0,2}(_+([A-Z]{1,14}[0-9]{0,2}|[0-9]{1,2}))*$`)
})
