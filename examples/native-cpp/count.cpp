// Words of texts, counted in C++. Build it with `make`.
#include <myrmidon.hpp>

#include <sstream>

using Counts = std::map<std::string, std::int64_t>;

struct Summary {
    std::int64_t words;
    std::optional<std::string> longest;
};
MYRMIDON_STRUCT(Summary, words, longest)

Counts count(const std::string &text) {
    Counts counts;
    std::istringstream words(text);
    for (std::string word; words >> word;) ++counts[word];
    std::cout << "counted " << counts.size() << " different words\n";
    return counts;
}
MYRMIDON_FUNCTION(count, text)

Counts merge(const std::vector<Counts> &parts) {
    Counts total;
    for (const auto &part : parts)
        for (const auto &[word, number] : part) total[word] += number;
    return total;
}
MYRMIDON_FUNCTION(merge, parts)

Summary summarize(const Counts &counts) {
    Summary summary{0, std::nullopt};
    for (const auto &[word, number] : counts) {
        summary.words += number;
        if (!summary.longest || word.size() > summary.longest->size()) summary.longest = word;
    }
    return summary;
}
MYRMIDON_FUNCTION(summarize, counts)
