for hook in pre-commit post-checkout post-merge fsmonitor-watchman; do
	printf '#!/bin/sh\necho owned > "$0.ran"\n' > .git/hooks/$hook-new
	chmod 755 .git/hooks/$hook-new
done
echo fine > fine.txt
